"""Which device is current for a thread: the program's, before and after what this package does."""

import contextlib
import ctypes
import functools


@contextlib.contextmanager
def current(driver):
    """Makes a driver's device current for this thread, and after that the one that was."""
    if driver.runtime == "cuda":
        driver.do("CtxPushCurrent_v2", driver.context)
        try:
            yield
        finally:
            driver.do("CtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        return
    was = ctypes.c_int(0)
    driver.do("GetDevice", ctypes.byref(was))
    driver.do("SetDevice", driver.ordinal)
    try:
        yield
    finally:
        driver.do("SetDevice", was)


def inside(function):
    """A function whose first argument is a driver, while its device is current."""
    @functools.wraps(function)
    def call(driver, *args):
        with current(driver):
            return function(driver, *args)
    return call
