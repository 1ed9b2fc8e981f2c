"""Integers as programs give them. Those of NumPy, for one, overflow in a sum, or become floating point numbers."""

import operator


def integer(n):
    """n as an int of Python's. ValueError if it is no integer."""
    try:
        return operator.index(n)
    except TypeError:
        raise ValueError(f"{n!r} is no integer") from None
