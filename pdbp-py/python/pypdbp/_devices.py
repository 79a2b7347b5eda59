"""Arrays of CUDA devices, by ``__cuda_array_interface__`` (versions 2 and 3), as provided by CuPy, Numba, PyTorch and others.

None of these is imported. The device waits for the stream that the interface names; the program does not.
"""

from __future__ import annotations

import math
from typing import Any

from ._pypdbp import Part, Target, _recv_device, _send_device


def _place(array: Any, write: bool) -> tuple[int, int, int | None]:
    """Address, bytes, and the stream whose work so far must be waited for."""
    interface = getattr(array, "__cuda_array_interface__", None)
    if not isinstance(interface, dict):
        raise TypeError(f"an array of a CUDA device is needed, with __cuda_array_interface__, not {type(array).__name__}")
    if interface.get("mask") is not None:
        raise BufferError("the array has a mask; send its data and its mask")
    shape, typestr = interface["shape"], interface["typestr"]
    size = int(typestr[2:])
    expected = [size * math.prod(shape[i + 1 :]) for i in range(len(shape))]
    strides = interface.get("strides")
    # The stride of a dimension of one element, or of none, means nothing.
    if strides is not None and any(n > 1 and s != e for n, s, e in zip(shape, strides, expected)):
        raise BufferError("the array is not C-contiguous; cupy.ascontiguousarray makes a copy that is")
    if 0 in shape:
        raise BufferError(f"the array of shape {tuple(shape)} has no bytes; it needs at least one")
    address, read_only = interface["data"]
    if write and read_only:
        raise BufferError("the array is read-only")
    # Before version 3 nothing is said of streams: the legacy default one is what most work is ordered with.
    stream = interface.get("stream") if interface.get("version", 0) >= 3 else 1
    if stream == 0:
        raise ValueError("0 is no stream of __cuda_array_interface__: it would be ambiguous")
    return int(address), size * math.prod(shape), stream


def send(part: Part, to: Target, array: Any, timeout: float | None) -> None:
    address, size, stream = _place(array, write=False)
    _send_device(part, to, array, address, size, stream, timeout)


def recv(part: Part, out: Any, timeout: float | None) -> tuple[Target, int]:
    address, size, stream = _place(out, write=True)
    return _recv_device(part, out, address, size, stream, timeout)
