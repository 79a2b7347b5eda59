"""Streams as files: data of any length from one part to another, in order."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from . import _pypdbp
from ._errors import Busy

if TYPE_CHECKING:
    from ._pypdbp import _Bytes


class Writer(io.RawIOBase):
    """The writing end of a stream, from ``Part.open``.

    ``close()``, and the end of a ``with``, send the rest and end the stream. An exception that leaves the ``with``, ``abandon()``, and
    dropping the writer give it up: its reader gets StreamBroken after what was sent. Calls wait for the time in the setting
    ``timeout_ms``.

    A node can write as many streams at a time as the setting ``stream_pipes`` says. What was written and fills no block stays in one until
    ``flush()``, and each destination node has as many as ``row_blocks`` says: flush streams that are not written to for a while.
    """

    def __init__(self, raw: _pypdbp.RawWriter) -> None:
        self._raw = raw
        self._over = False

    def writable(self) -> bool:
        return True

    def write(self, data: _Bytes, /) -> int:
        """Writes all of the data, unlike other raw files. After an exception (a timeout, Ctrl-C), some of it may be written."""
        self._check()
        return self._raw.write(data)

    def write_or(self, data: _Bytes, receive: Callable[[_pypdbp.Message], object]) -> int:
        """Writes all of the data, but while there is no room, passes each message that arrives for the part to ``receive``: for parts that are
        sent messages while they write. An exception of ``receive`` leaves some of the data unwritten."""
        self._check()
        written, is_over = self._raw.write_some(data, 0)
        while not is_over:
            message = self._raw.recv_or_room()
            if message is not None:
                receive(message)
                # Its bytes are the sender's room.
                del message
            self._check()
            written, is_over = self._raw.write_some(data, written)
        return written

    def readinto(self, room: _Bytes, /) -> int:
        raise io.UnsupportedOperation("this is the writing end of a stream; its reader is what Part.accept gives")

    def flush(self) -> None:
        """Sends what was written, without waiting for a block to fill."""
        # Closing a file flushes it.
        if not self._over:
            self._raw.flush()

    def abandon(self) -> None:
        """Gives up the stream."""
        if not self._over:
            self._over = True
            self._raw.abandon()
            super().close()

    def close(self) -> None:
        """Sends the rest, and ends the stream. Raises Busy while another thread is in a call of the part; it can then be closed later."""
        if self._over:
            return
        is_over = True
        try:
            self._raw.finish()
        except Busy:
            # It may be that of a signal handler, which ran after the end had begun.
            is_over = self._raw.is_over()
            raise
        finally:
            if is_over:
                self._over = True
                super().close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abandon()
        self.close()

    def __del__(self) -> None:
        self.abandon()

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")


class Reader(io.RawIOBase):
    """The reading end of a stream, from ``Part.accept``.

    Has ``read``, ``readinto``, ``readline`` and the rest of ``io.RawIOBase``; use ``io.BufferedReader(reader)`` to read small pieces. Closing it
    before the end discards the rest as it arrives.
    """

    def __init__(self, raw: _pypdbp.RawReader) -> None:
        self._raw = raw

    @property
    def source(self) -> _pypdbp.Target:
        """The part that writes."""
        return self._raw.source

    def readable(self) -> bool:
        return True

    def write(self, data: _Bytes, /) -> int:
        raise io.UnsupportedOperation("this is the reading end of a stream; its writer is what Part.open gives")

    def readinto(self, room: _Bytes, /) -> int:
        """Reads as many bytes as are available and fit, at least one; 0 at the end."""
        self._check()
        return self._raw.readinto(room)

    def readinto_all(self, room: _Bytes, /) -> int:
        """Fills all of the room, or as much of it as the stream has. An exception (a timeout, Ctrl-C) loses how much was filled: to go on reading
        after one, use ``readinto``."""
        self._check()
        return self._raw.readall_into(room)

    def close(self) -> None:
        if not self.closed:
            self._raw.abandon()
            super().close()

    def __del__(self) -> None:
        self.close()

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

