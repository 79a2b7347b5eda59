"""Parts of a distributed program that send messages and streams to each other by name.

>>> import pypdbp
>>> with pypdbp.start(nodes=2) as cluster:
...     a, b = (node.register("worker") for node in cluster.nodes)
...     a.send(a.find("worker@node1"), b"hello")
...     with b.recv(timeout=5) as message:
...         print(bytes(message))
b'hello'

Messages are the bytes of anything with a C-contiguous buffer (bytes, bytearray, memoryview, numpy arrays), sent without a hidden copy and never
pickled, and are read where they arrived. What is received holds the room of the sender until it is released: at the end of its ``with``, by
``release()``, or when it and all views of it are gone. ``tobytes()`` makes a copy to keep; ``Part.messages_held`` counts the others.

Streams are files, by ``part.open(to)`` and ``part.accept()``; ``for piece in part.streams()`` reads all that a part has on one thread. ``node.watch()``
has the nodes that come and go.
Members of a group call the same things together, on arrays in place: ``node.group("gradients")`` on every node, then ``group.all_reduce(gradient)``.

Any thread may use a part or a group, one at a time; who comes while another is in a call gets ``Busy``. Waiting calls let other threads of Python run, and
Ctrl-C ends them; in asyncio it is ``await part.arecv()``. All nodes are threads of this process, or, where ``PDBP_LISTEN`` and ``PDBP_JOIN`` say so,
each process has one; under ``mpirun`` too, for which the module loads the MPI of the launcher (``HAS_MPI``: it was built so). What a process has of a
cluster is not for its forked children, which start one of their own, as do those of the start method "spawn" of multiprocessing.
"""

import atexit as _atexit
import os as _os

from . import _launch
from ._errors import (
    Busy,
    Closed,
    ConfigError,
    DeviceError,
    Forked,
    GroupArgumentError,
    GroupError,
    Interrupted,
    NoRoom,
    NotFound,
    Panic,
    PdbpError,
    PeerFailed,
    RegisterError,
    StartError,
    StreamBroken,
    Timeout,
    TooLong,
)
from ._pypdbp import (
    HAS_MPI,
    Batch,
    Batches,
    Cluster,
    Event,
    Group,
    Loan,
    Message,
    Node,
    Part,
    Piece,
    Ready,
    Returned,
    StreamId,
    Streams,
    Target,
    Watch,
    __version__,
    _forked,
    start,
)
from ._streams import Reader, Writer

__all__ = [
    "HAS_MPI",
    "Batch",
    "Batches",
    "Busy",
    "Closed",
    "Cluster",
    "ConfigError",
    "DeviceError",
    "Event",
    "Forked",
    "Group",
    "GroupArgumentError",
    "GroupError",
    "Interrupted",
    "Loan",
    "Message",
    "NoRoom",
    "Node",
    "NotFound",
    "Panic",
    "Part",
    "PdbpError",
    "PeerFailed",
    "Piece",
    "Reader",
    "Ready",
    "RegisterError",
    "Returned",
    "StartError",
    "StreamBroken",
    "StreamId",
    "Streams",
    "Target",
    "Timeout",
    "TooLong",
    "Watch",
    "Writer",
    "__version__",
    "start",
]

_launch.install()
_atexit.register(_launch.at_exit)
_os.register_at_fork(after_in_child=_forked)
