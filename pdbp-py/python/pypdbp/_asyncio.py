"""Waiting in asyncio. All tasks of a loop that wait for a part share one reader of its descriptor, which is there as long as they wait."""

import asyncio
import weakref

from ._errors import NoRoom

# For each loop: the futures of those who wait, by descriptor.
_waiting: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


async def recv(part):
    return await _until(part, part.try_recv)


async def recv_batch(part):
    return await _until(part, lambda: next(iter(part.batches()), None))


async def send(part, to, data):
    def attempt():
        try:
            part.send(to, data, timeout=0)
        except NoRoom:
            return None
        return True

    await _until(part, attempt, to=to, recv=False)


async def _until(part, attempt, **interest):
    """Tries until there is something."""
    while (found := attempt()) is None:
        await _come(part, interest)
    return found


async def _come(part, interest):
    """Returns when to look again."""
    loop = asyncio.get_running_loop()
    waiting = _waiting.setdefault(loop, {})
    descriptor = part.fileno()
    # Whoever arms the descriptor takes from the others what has come for them.
    rung, ready = part._arm(**interest)
    if rung:
        _wake(loop, descriptor)
    if ready:
        return
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
