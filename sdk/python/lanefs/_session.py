"""A connection to the daemon of one mount. There is one a process and mount."""

import array
import mmap
import os
import select
import socket
import struct
import threading
import weakref

from . import _wire as w


class NotLaneFS(OSError):
    """The file is not on a LaneFS mount that gives out device memory."""


class Session:
    """Use Session.of(fd). Requests of all threads are carried out one after the other."""

    _all = weakref.WeakValueDictionary()  # by process and socket
    _lock = threading.Lock()

    @classmethod
    def of(cls, fd, name="the file"):
        try:
            path = os.getxattr(fd, w.ATTRIBUTE)
        except OSError:
            raise NotLaneFS(None, f"{name} is not on a LaneFS mount that gives out device memory") from None
        key = (os.getpid(), path)  # a fork has no right to its parent's connection
        with cls._lock:
            found = cls._all.get(key)
            if found is None or found._socket is None:
                found = cls(path)
                cls._all[key] = found
            return found

    def __init__(self, path):
        self._mutex = threading.Lock()
        self._tag = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect(path)
        except OSError as e:
            self._socket.close()
            raise OSError(e.errno, "the daemon's socket is not reachable from here (in a container, mount its directory too)",
                          os.fsdecode(path)) from None
        body, fds = self.call(w.HELLO, w.HELLO_REQUEST.pack(w.MAGIC, w.VERSION, w.VERSION, 0), w.HELLO_REPLY, rights=2)
        self.version, runtime, self.kind, self.granule, self.pool_size, slots, writable, device, name = body
        self.runtime = w.RUNTIMES.get(runtime, "unknown")
        self.device, self.name = (t.rstrip(b"\0").decode(errors="replace") for t in (device, name))
        self.shared_by_user = bool(writable)
        self._event = fds[1]
        self._board = mmap.mmap(fds[0], 8 * slots, mmap.MAP_SHARED, mmap.PROT_READ)
        os.close(fds[0])

    def call(self, kind, request, reply=None, rights=0, pass_fds=()):
        """Makes one request; gives the reply's fields and descriptors, which are the caller's."""
        with self._mutex:
            if self._socket is None:
                raise OSError("the session is closed")
            self._tag += 1
            tag = self._tag
            message = w.HEADER.pack(kind, 0, w.HEADER.size + len(request), tag, 0) + request
            socket.send_fds(self._socket, [message], list(pass_fds))
            data, got = self._receive()
        try:
            if len(data) < w.HEADER.size:
                raise ConnectionError("the mount's daemon has gone" if not data else "the daemon sent a malformed reply")
            got_kind, _, length, got_tag, status = w.HEADER.unpack_from(data)
            body = data[w.HEADER.size:]
            # A Hello may be refused before it was read, with tag 0.
            if length != len(data) or got_kind != kind | w.REPLY or got_tag != tag and (kind != w.HELLO or not status):
                raise ConnectionError("the daemon does not speak its protocol")
            if status:
                raise OSError(status, body.decode(errors="replace") or os.strerror(status))
            if len(got) != rights or len(body) != (reply.size if reply else 0):
                raise ConnectionError("the daemon sent a malformed reply")
            fields = reply.unpack(body) if reply else ()
        except BaseException:
            for fd in got:
                os.close(fd)
            raise
        return fields, got

    def _receive(self):
        fds = array.array("i")
        data, ancillary, _, _ = self._socket.recvmsg(w.MAX_MESSAGE, socket.CMSG_SPACE(16 * fds.itemsize), socket.MSG_CMSG_CLOEXEC)
        for level, kind, value in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(value[: len(value) - len(value) % fds.itemsize])
        return data, list(fds)

    def latest(self, handle):
        """The generation that a mapping's range of its file has now."""
        return struct.unpack_from("<Q", self._board, 8 * handle)[0]

    def wait(self, timeout=None):
        """Returns True when some mapping may no longer be current, False after timeout seconds."""
        ready, _, _ = select.select([self._event], [], [], timeout)
        if ready:
            try:
                os.read(self._event, 8)
            except BlockingIOError:
                pass  # another thread was faster
        return bool(ready)

    def release(self, handle):
        if self._socket is not None:
            try:
                self.call(w.RELEASE, w.RELEASE_REQUEST.pack(handle, 0))
            except (OSError, ValueError):
                pass  # the daemon has gone, and all handles with it

    def close(self):
        """Ends the session and everything it gave, but for memory that is still mapped."""
        with self._mutex:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
                os.close(self._event)

    def __del__(self):
        if getattr(self, "_socket", None) is not None:
            self.close()
