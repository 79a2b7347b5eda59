"""Parts of a distributed program that send messages and streams to each other by name.

>>> import pypdbp
>>> with pypdbp.start(nodes=2) as cluster:
...     a, b = (node.register("worker") for node in cluster.nodes)
...     a.send(a.find("worker@node1"), b"hello")
...     with b.recv(timeout=5) as message:
...         print(bytes(message))
b'hello'

Messages are the bytes of anything with a C-contiguous buffer (bytes, bytearray, memoryview, numpy arrays), sent without a hidden copy and never
pickled, and are read where they arrived. A received message occupies the sender's room until it is released: at the end of its ``with``, by
``release()``, or when it and all views of it are gone. ``tobytes()`` makes a copy to keep; ``Part.messages_held`` counts unreleased messages.

Streams are files, from ``part.open(to)`` and ``part.accept()``; ``for piece in part.streams()`` reads all streams to a part on one thread.
``node.watch()`` reports nodes that come and go.
Members of a group make collective calls, on arrays in place: ``node.group("gradients")`` on every node, then ``group.all_reduce(gradient)``.

Any thread may use a part or a group, one at a time; a second thread that makes a call meanwhile gets ``Busy``. Waiting calls let other Python threads
run, and Ctrl-C ends them; in asyncio use ``await part.arecv()``. All nodes are threads of this process, unless ``PDBP_LISTEN`` and ``PDBP_JOIN`` are
set: then each process has one node. So it does under ``mpirun``, where the module loads the launcher's MPI (if built with it: ``HAS_MPI``). Forked
children cannot use their parent's cluster; they start their own, as do those of multiprocessing's start method "spawn".
"""

import atexit as _atexit
import os as _os

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
    _close_all,
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

_atexit.register(_close_all)
_os.register_at_fork(after_in_child=_forked)
