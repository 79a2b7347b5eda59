"""Waiting in asyncio. All tasks of a loop that wait for a part, or with a watch, share one reader of its descriptor, which exists while they wait."""

import asyncio
import weakref

from . import _pypdbp
from ._errors import PeerFailed

# For each loop: the futures of waiting tasks, by descriptor.
_waiting: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


async def recv(part):
    return await _until(part, _pypdbp._poll_recv)


async def recv_batch(part):
    return await _until(part, _pypdbp._poll_batch)


async def piece(part):
    return await _until(part, _pypdbp._poll_piece)


async def next_piece(part, timeout):
    """For ``async for``: the iteration ends when no piece comes within the timeout, or nobody is left to write one."""
    try:
        async with asyncio.timeout(timeout):
            return await piece(part)
    except (TimeoutError, PeerFailed):
        raise StopAsyncIteration from None


async def event(watch):
    return await _until(watch, _pypdbp._poll_event)


async def send(part, to, data):
    await _until(part, lambda part: _pypdbp._poll_send(part, to, data))


async def _until(part, attempt):
    """Retries ``attempt`` until it finds something. It also returns whether the descriptor was readable, of which the other waiting tasks would not
    hear again."""
    loop = asyncio.get_running_loop()
    while True:
        rung, found = attempt(part)
        if rung:
            _wake(loop, part.fileno())
        if found is not None:
            return found
        await _come(loop, part.fileno())


async def _come(loop, descriptor):
    """Returns when it is time to check again."""
    waiting = _waiting.setdefault(loop, {})
    future = loop.create_future()
    if descriptor not in waiting:
        waiting[descriptor] = []
        loop.add_reader(descriptor, _wake, loop, descriptor)
    waiting[descriptor].append(future)
    try:
        await future
    except asyncio.CancelledError:
        others = waiting.get(descriptor, [])
        if future in others:
            others.remove(future)
        if not others:
            _wake(loop, descriptor)
        raise


def _wake(loop, descriptor):
    loop.remove_reader(descriptor)
    for future in _waiting.get(loop, {}).pop(descriptor, []):
        if not future.done():
            future.set_result(None)
