"""Under an MPI launcher, a process that ends by an uncaught exception does not finalise MPI, since it and the others would then wait for each other.
It exits with status 1, and the launcher ends the job. Where mpi4py has initialised MPI, that is left to ``python -m mpi4py``.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType

from . import _pypdbp

_failed = False


def install() -> None:
    """Watches for exceptions, if this process is one of a job."""
    if not (_pypdbp.HAS_MPI and _pypdbp._is_launched()):
        return
    show = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        global _failed
        _failed = True
        show(kind, value, traceback)

    sys.excepthook = hook


def at_exit() -> None:
    """The end of the interpreter."""
    _pypdbp._close_all()
    if _failed and "mpi4py.MPI" not in sys.modules:
        for file in sys.stdout, sys.stderr:
            try:
                file.flush()
            except (OSError, ValueError, AttributeError):
                # Nobody reads it any more.
                pass
        os._exit(1)
