"""What memory is: plain bytes, or references and pointers, over which the bytes of a file must not be written, or no memory at all."""

import ctypes
import numbers
import re

_NAMES = re.compile(r":[^:]*:")          # of a structure's members (PEP 3118), which may have any letter
_POINTERS = re.compile(r"[OPzX&]|Z(?![fdg])")  # an object, void *, char *, a function, a pointer, wchar_t *; before f, d and g Z is a complex number

_KINDS = ctypes.Array, ctypes.Structure, ctypes.Union
_SIMPLE = ctypes._SimpleCData
_plain = set()                           # formats that were looked at; few


def need_plain(memory, view):
    """TypeError if memory, of which view is a memoryview, holds references to objects, or pointers. Also memory that is written from: as bytes they mean nothing. And if it is a number of NumPy's, which
    has a buffer: of itself, and who gives one may mean an address."""
    text = view.format
    if not view.ndim and isinstance(memory, numbers.Integral):
        raise _refused(type(memory).__name__, "is a number's: if it is an address, give int of it")
    if text not in _plain:
        if _POINTERS.search(_NAMES.sub("", text)):
            raise _refused(getattr(memory, "dtype", text))
        if len(_plain) < 1000:
            _plain.add(text)
    if isinstance(view.obj, _KINDS) and _points(type(view.obj)):  # ctypes' formats do not say what unions and packed structures hold
        raise _refused(type(view.obj).__name__)


def need_plain_array(interface):
    """Likewise, for a __cuda_array_interface__."""
    for text in _types(interface["typestr"], interface.get("descr")):
        if text[1:2] == "O":
            raise _refused(text)


def storage_of(tensor):
    """The method of a tensor of PyTorch's that gives what has its bytes. TypeError if it is none, but has an address, as what has a tensor's bytes has."""
    method = getattr(tensor, "untyped_storage", None) or getattr(tensor, "storage", None)  # before PyTorch 2
    if method is None:
        raise _refused(type(tensor).__name__, "is no tensor's: give a tensor of it")
    return method


def _refused(what, why="holds references to objects, or pointers, and no plain bytes: it is not read into, nor written from"):
    return TypeError(f"memory of type {what} {why}")


def _points(kind):
    """Whether a type of ctypes has references or pointers in it."""
    if issubclass(kind, ctypes.Array):
        return _points(kind._type_)
    if issubclass(kind, (ctypes.Structure, ctypes.Union)):
        return any(_points(field[1]) for base in kind.__mro__ for field in base.__dict__.get("_fields_", ()))
    return not issubclass(kind, _SIMPLE) or kind._type_ in "OPzZ"  # what is not simple is a pointer, or a function


def _types(typestr, descr):
    """The types of an array's elements: of a structure (NumPy's array interface) those of its members."""
    if typestr[1:2] != "V" or not descr:
        return [typestr]
    return [t for member in descr for t in (_types("|V", member[1]) if isinstance(member[1], list) else [member[1]])]
