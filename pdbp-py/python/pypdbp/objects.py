"""Python objects as messages, by pickle: ``load`` RUNS CODE THAT ANY NODE HAS SENT, so use it only where all nodes are trusted.

>>> import pypdbp
>>> from pypdbp import objects
>>> with pypdbp.start(nodes=2) as cluster:
...     a, b = (node.register("worker") for node in cluster.nodes)
...     objects.send(a, a.find("worker@node1"), {"frame": 7, "scores": [0.5, 0.25]})
...     with b.recv(timeout=5) as message:
...         print(objects.load(message))
{'frame': 7, 'scores': [0.5, 0.25]}

Large buffers, such as those of numpy arrays, are not pickled but lie behind the pickle (protocol 5, PEP 574): they are copied once, into the message, and
are read where they arrived.

The message: the four letters ``PDBO``, the version 1, three bytes of zero, the number of buffers and the length of the pickle (eight bytes each, little-endian);
the length of each buffer (eight bytes); the pickle; the buffers. Pickle and buffers begin at multiples of 16.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

from ._errors import PdbpError
from ._pypdbp import Message, Part, Target

__all__ = ["load", "send"]

_MAGIC, _VERSION = b"PDBO", 1
_START = struct.Struct("<4sB3xQQ")


def _aligned(at: int) -> int:
    return (at + 15) & ~15


def send(part: Part, to: Target, obj: object, timeout: float | None = None) -> None:
    """Sends an object as one message, as ``part.send`` sends bytes."""
    found: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(obj, protocol=5, buffer_callback=found.append)
    buffers: list[Any] = [buffer.raw() for buffer in found]
    head = _START.pack(_MAGIC, _VERSION, len(buffers), len(pickled))
    head += struct.pack(f"<{len(buffers)}Q", *(buffer.nbytes for buffer in buffers))
    pieces: list[Any] = []
    at = 0
    for piece in (head, pickled, *buffers):
        pieces += bytes(_aligned(at) - at), piece
        at = _aligned(at) + len(piece)
    part.send(to, b"".join(pieces), timeout)


def load(message: Message, copy: bool = False) -> Any:
    """The object in a message. Its large buffers are read-only views of the message, and keep it from being released; with ``copy`` they are
    writable copies."""
    view = memoryview(message)
    if len(view) < _START.size or view[:4] != _MAGIC or view[4] != _VERSION:
        raise PdbpError(f"{len(view)} bytes that objects.send has not sent; read them by bytes(message)")
    _, _, count, length = _START.unpack_from(view)
    head = _START.size + 8 * count
    # Before anything is read by a number that another node has sent.
    if head > len(view):
        raise PdbpError(f"an object of {count} buffers in a message of {len(view)} bytes")
    sizes = (length, *struct.unpack_from(f"<{count}Q", view, _START.size))
    at, pieces = head, []
    for size in sizes:
        at = _aligned(at)
        if size > len(view) - at:
            raise PdbpError(f"a message of {len(view)} bytes ends before the {size} bytes at {at} of an object")
        pieces.append(view[at : at + size])
        at += size
    return pickle.loads(pieces[0], buffers=[bytearray(piece) if copy else piece for piece in pieces[1:]])
