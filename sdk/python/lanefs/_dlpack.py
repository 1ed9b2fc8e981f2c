"""DLPack capsules: how PyTorch, NumPy and others use memory without a copy (https://dmlc.github.io/dlpack)."""

import atexit
import collections
import ctypes
import sys


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int), ("dtype", _DataType),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]

_alive = {}  # tensors that a consumer has, or may take yet, by address
_offered = collections.deque()  # addresses and capsules of those that nobody had taken when it was looked


@_Deleter
def _delete(managed):
    _alive.pop(ctypes.addressof(managed.contents), None)


@atexit.register
def _leave():
    """Tensors that outlive Python, as those of globals do, must not call it: what they have stays until the process ends."""
    for managed, *_ in _alive.values():
        managed.deleter = _Deleter()  # none
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_alive))


def _python(name, result, *args):
    # The functions of ctypes.pythonapi are shared by all packages, and another one may set other types.
    return ctypes.PYFUNCTYPE(result, *args)((name, ctypes.pythonapi))


_new = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_valid = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)


def sweep():
    """Lets go of what nobody has taken, and nobody can any more. A capsule's destructor would come at once; but one in Python replaces the exception for which the capsule goes,
    by one of its own, and does not do its work then."""
    for _ in range(len(_offered)):
        try:
            entry = _offered.popleft()
        except IndexError:
            return  # other threads took them
        at, cap = entry
        if not _valid(cap, b"dltensor"):
            continue  # it has a consumer, who gives it back
        del cap
        if sys.getrefcount(entry[1]) > 2:  # the entry's, and that of the question
            _offered.append(entry)
        else:
            _alive.pop(at, None)


def capsule(memory, owner, offset, size, stream=None, max_version=None, dl_device=None, copy=None):
    """The bytes [offset, offset+size) of memory as a tensor of uint8. owner lives as long as the consumer's tensor. No work
    on the memory is in flight, so there is no stream to wait for."""
    sweep()
    if copy:
        raise BufferError("this memory is handed over as it is: copy it afterwards")
    if dl_device is not None and tuple(dl_device) != tuple(memory.device):
        raise BufferError(f"the memory is on device {tuple(memory.device)}, and is not brought to {tuple(dl_device)}")
    shape = (ctypes.c_int64 * 1)(size)
    m = _Managed()
    m.tensor.data = memory.address + offset if size else None
    m.tensor.device = _Device(*memory.device)
    m.tensor.ndim = 1
    m.tensor.dtype = _DataType(1, 8, 1)
    m.tensor.shape = shape
    m.deleter = _delete
    at = ctypes.addressof(m)
    _alive[at] = (m, shape, memory, owner)
    cap = _new(at, b"dltensor", None)
    _offered.append((at, cap))
    return cap
