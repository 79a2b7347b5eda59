"""What calls raise: a tree below PdbpError. Messages say what was wrong, with which value, and what to do."""

from __future__ import annotations


class PdbpError(Exception):
    """Any error of the runtime. ``nodes`` are the indices of the nodes that it is about."""

    nodes: list[int]

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.nodes = []


class Timeout(PdbpError, TimeoutError):
    """A call waited as long as it may; ``nodes`` are those that it waited for."""


class PeerFailed(PdbpError, ConnectionError):
    """A node has failed, or left: one of ``nodes``."""


class NoRoom(PdbpError, BlockingIOError):
    """There is no room now, and the call does not wait: receive, or try again later."""


class Interrupted(PdbpError):
    """Somebody has ended the wait, by Node.interrupt."""


class Busy(PdbpError):
    """Another thread is in a call of this part, or something else is in the way that ends by itself."""


class Closed(PdbpError, ValueError):
    """The cluster, part, stream or message was closed or released before."""


class Forked(PdbpError):
    """What a forked child has inherited belongs to its parent."""


class NotFound(PdbpError, LookupError):
    """No such node or part."""


class TooLong(PdbpError, ValueError):
    """The message, command or loan is longer than the settings allow."""


class StreamBroken(PdbpError, EOFError):
    """The stream ended before its end: its writer gave it up, or its node failed."""


class RegisterError(PdbpError):
    """The part cannot be registered: its name is taken, say."""


class ConfigError(PdbpError, ValueError):
    """A setting that cannot be used, in a keyword, the environment or a file."""


class GroupError(PdbpError):
    """The group has ended: a member has made another call, or given one up. Make a new one."""


class GroupArgumentError(GroupError, ValueError):
    """A call of a group that cannot be, such as one of a member that there is not: the group is as it was."""


class DeviceError(PdbpError):
    """There is no CUDA device, or it has failed."""


class StartError(PdbpError):
    """The cluster did not start."""


class Panic(PdbpError):
    """The runtime has panicked, which is a bug in it. Nothing but closing works after that."""
