"""Which device is current for a thread, and how its calls bear on captures of streams: the program's, before and after what this package does."""

import contextlib
import ctypes
import functools


@contextlib.contextmanager
def current(driver):
    """Makes a driver's device current for this thread, and after that the one that was."""
    if driver.runtime == "cuda":
        driver.do("CtxPushCurrent_v2", driver.context)
        try:
            with _relaxed(driver):
                yield
        finally:
            driver.do("CtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        return
    was = ctypes.c_int(0)
    driver.do("GetDevice", ctypes.byref(was))
    driver.do("SetDevice", driver.ordinal)
    try:
        with _relaxed(driver):
            yield
    finally:
        driver.do("SetDevice", was)


@contextlib.contextmanager
def _relaxed(driver):
    """Has calls of this thread not end captures of streams (torch.cuda.graph), which would forbid some of them: lanefs_gpu_enter of the C library does the same."""
    mode = ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED
    if not driver.has("ThreadExchangeStreamCaptureMode"):
        yield
        return
    driver.do("ThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    try:
        yield
    finally:
        driver.do("ThreadExchangeStreamCaptureMode", ctypes.byref(mode))


def inside(function):
    """A function whose first argument is a driver, while its device is current."""
    @functools.wraps(function)
    def call(driver, *args):
        with current(driver):
            return function(driver, *args)
    return call
