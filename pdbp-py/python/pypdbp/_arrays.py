"""Arrays as streams: a header that describes them, then their bytes, which are copied once, into the receiver's array.

The header, in bytes: the four letters ``PDBA``, the version 1, the byte order (``<`` or ``>``), the number of dimensions, the length of the
format; the format of an element as in the module struct; the dimensions, eight bytes each, in that byte order.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from typing import TYPE_CHECKING, Any

from ._errors import PdbpError
from ._pypdbp import Part, Target, _check_bytes
from ._streams import Reader

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MAGIC = b"PDBA"
_VERSION = 1
_START = struct.Struct("4sBcBB")
_ORDER = "<" if sys.byteorder == "little" else ">"
# Names of native types that differ between platforms, by their size: an "l" is a "q" here and an "i" elsewhere.
_SIZED = {**dict.fromkeys("lqn", "iq"), **dict.fromkeys("LQN", "IQ")}

# What numpy calls types that the buffer protocol has other names for.
_NUMPY = {"Zf": "F", "Zd": "D", "Zg": "G", "s": "S", "w": "U", "x": "V"}


def _portable(format: str) -> str:
    """The format of one element, in a form that means the same on all platforms of this byte order."""
    code = format.lstrip("@=" + _ORDER)
    if code in _SIZED:
        native = format[0] == "@" or format == code
        size = struct.calcsize(code) if native else struct.calcsize("=" + code)
        return _SIZED[code][size == 8]
    return code


def _header(view: Any) -> bytes:
    format = _portable(view.format).encode()
    if len(format) > 255:
        raise BufferError(f"the format of an element has {len(format)} bytes, of 255 at most")
    start = _START.pack(_MAGIC, _VERSION, _ORDER.encode(), view.ndim, len(format))
    return start + format + struct.pack(f"{_ORDER}{view.ndim}Q", *view.shape)


def send(part: Part, to: Target, array: Buffer) -> None:
    """Sends an array as a stream, which is opened when nothing is wrong with the array."""
    _check_bytes(array)
    view: Any = memoryview(array)
    header = _header(view)
    with part.open(to) as writer:
        writer.write(header)
        if view.nbytes:
            writer.write(view)


def recv(source: Reader, out: Buffer | None) -> Any:
    """Reads an array: into ``out``, which must match it, or into new memory."""
    with source:
        format, shape = _read_header(source)
        if out is None:
            array = _new(format, shape)
        else:
            array = out
            view = memoryview(out)
            if (_portable(view.format), view.shape) != (format, shape):
                raise ValueError(
                    f"an array of shape {shape} and format {format!r} has come, and `out` has shape {view.shape} and format "
                    f"{_portable(view.format)!r}"
                )
        nbytes = memoryview(array).nbytes
        read = source.readinto_all(array) if nbytes else 0
        if read < nbytes:
            raise PdbpError(f"the array ended after {read} bytes of {nbytes}")
        return array


def _read_header(source: Reader) -> tuple[str, tuple[int, ...]]:
    magic, version, order, ndim, length = _START.unpack(_read(source, _START.size))
    if magic != _MAGIC:
        raise PdbpError("the stream is no array; take such streams by `accept`")
    if version != _VERSION:
        raise PdbpError(f"an array of version {version}, and this is version {_VERSION}: use the same pypdbp everywhere")
    if order != _ORDER.encode():
        raise PdbpError("the array comes from a processor of another byte order")
    format = _read(source, length).decode()
    return format, struct.unpack(f"{_ORDER}{ndim}Q", _read(source, 8 * ndim))


def _read(source: Reader, length: int) -> bytes:
    room = bytearray(length)
    if length and source.readinto_all(room) < length:
        raise PdbpError("the stream is no array: it ends within the header")
    return bytes(room)


def _new(format: str, shape: tuple[int, ...]) -> Any:
    """A numpy array, or without numpy a memoryview of that format and shape."""
    parts = re.fullmatch(r"([<>]?)(\d*)(Z?[a-zA-Z?])", format)
    if parts is None:
        raise ValueError(f"elements of several fields ({format}) are received into an array that has them: give it as `out`")
    try:
        import numpy
    except ImportError:
        pass
    else:
        order, count, code = parts.groups()
        return numpy.empty(shape, f"{order}{_NUMPY.get(code, code)}{count}")
    room: Any = memoryview(bytearray(struct.calcsize(format) * math.prod(shape)))
    return room.cast(format, shape) if shape and room.nbytes else room.cast(format)
