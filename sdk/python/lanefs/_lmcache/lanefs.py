"""What LMCache finds by this file's name, after lanefs.lmcache.register()."""

from lanefs.lmcache import Backend

__all__ = ["Backend"]
