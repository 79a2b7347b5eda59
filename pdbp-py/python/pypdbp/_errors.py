"""The exceptions: a tree below PdbpError. Messages say what was wrong, with which value, and what to do."""

from __future__ import annotations


class PdbpError(Exception):
    """Any error of the runtime. ``nodes`` are the indices of the nodes it concerns, as far as these are known: there are none for calls of groups,
    whose text names the member, and for calls that waited for any node."""

    nodes: list[int]

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.nodes = []


class Timeout(PdbpError, TimeoutError):
    """A call has waited for its time; ``nodes`` are the nodes that it waited for."""


class PeerFailed(PdbpError, ConnectionError):
    """A node has failed, or left: one of ``nodes``, or all others."""


class NoRoom(PdbpError, BlockingIOError):
    """There is no room now, and the call does not wait: receive, or try again later."""


class Interrupted(PdbpError):
    """The wait was ended by Node.interrupt."""


class Busy(PdbpError):
    """Another thread is in a call of this part, or something else blocks the call that will end by itself."""


class Closed(PdbpError, ValueError):
    """The cluster, part, stream or message has already been closed or released."""


class Forked(PdbpError):
    """A forked child has used an object that it inherited, which belongs to its parent."""


class NotFound(PdbpError, LookupError):
    """No such node or part."""


class TooLong(PdbpError, ValueError):
    """The message, command or loan is longer than the settings allow."""


class StreamBroken(PdbpError, EOFError):
    """The stream ended early: its writer gave it up, or its node failed."""


class RegisterError(PdbpError):
    """The part cannot be registered: for example, its name is taken."""


class ConfigError(PdbpError, ValueError):
    """A setting that cannot be used, in a keyword, the environment or a file."""


class GroupError(PdbpError):
    """The group has ended: a member has made another call, or given one up. Make a new one."""


class GroupArgumentError(GroupError, ValueError):
    """An invalid call of a group, for example with a member that does not exist: the group is unchanged."""


class DeviceError(PdbpError):
    """There is no CUDA device, or it has failed."""


class StartError(PdbpError):
    """The cluster did not start."""


class Panic(PdbpError):
    """The runtime has panicked, which is a bug in it. Nothing but closing works after that."""
