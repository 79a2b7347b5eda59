"""Waiting in asyncio, and in loops over descriptors."""

import asyncio
import select

import pypdbp
import pytest
from conftest import SOON, Thread, cause_event


def run(task):
    return asyncio.run(asyncio.wait_for(task, SOON))


def test_two_tasks_play_ping_pong(pair):
    async def echo():
        for _ in range(300):
            with await pair.b.arecv() as message:
                await pair.b.asend(message.source, message)
        pair.b.flush()

    async def ping():
        for n in range(300):
            await pair.a.asend(pair.to_b, b"%d" % n)
            with await pair.a.arecv() as message:
                assert bytes(message) == b"%d" % n

    async def both():
        await asyncio.gather(echo(), ping())

    run(both())


def test_the_loop_goes_on_while_a_task_waits(pair):
    async def main():
        receiving = asyncio.create_task(pair.b.arecv())
        # The loop has other things to do, as long as nothing comes.
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not receiving.done()
        pair.a.send(pair.to_b, b"at last")
        pair.a.flush()
        with await receiving as message:
            assert bytes(message) == b"at last"

    run(main())


def test_several_tasks_share_a_part(pair):
    async def main():
        tasks = [asyncio.create_task(pair.b.arecv()) for _ in range(5)]
        await asyncio.sleep(0.01)
        for n in range(5):
            pair.a.send(pair.to_b, bytes([n]))
        pair.a.flush()
        got = []
        for message in await asyncio.gather(*tasks):
            got.append(bytes(message))
            message.release()
        assert sorted(got) == [bytes([n]) for n in range(5)]

    run(main())


def test_a_task_that_sends_waits_for_room_and_one_that_receives_is_not_forgotten(pair):
    async def main():
        async def fill():
            for n in range(5000):
                await pair.a.asend(pair.to_b, n.to_bytes(4, "little") * 200)
            pair.a.flush()

        # Of the same part, for something else.
        answer = asyncio.create_task(pair.a.arecv())
        filling = asyncio.create_task(fill())
        for n in range(5000):
            with await pair.b.arecv() as message:
                assert bytes(message)[:4] == n.to_bytes(4, "little")
                if n == 2500:
                    pair.b.send(message.source, b"half of it")
                    pair.b.flush()
        with await answer as message:
            assert bytes(message) == b"half of it"
        await filling

    run(main())


def test_a_send_that_fails_does_not_keep_another_task_waiting(pair):
    async def main():
        receiving = asyncio.create_task(pair.b.arecv())
        # It looks first, and polls for a while before it sleeps: the failing call takes the descriptor's news meanwhile.
        failing = asyncio.create_task(pair.b.asend(pair.to_a, bytes(pair.b.longest + 1)))
        with pytest.raises(pypdbp.TooLong):
            await failing
        pair.a.send(pair.to_b, b"a message")
        pair.a.flush()
        with await receiving as message:
            assert bytes(message) == b"a message"

    run(main())


def test_a_cancelled_task_loses_nothing(pair):
    async def main():
        for n in range(20):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(pair.b.arecv(), 0.002)
        pair.a.send(pair.to_b, b"still there")
        pair.a.flush()
        with await pair.b.arecv() as message:
            assert bytes(message) == b"still there"

    run(main())


def test_batches(pair):
    async def main():
        receiving = asyncio.create_task(pair.b.arecv_batch())
        await asyncio.sleep(0.001)
        pair.a.send(pair.to_b, b"12345678")
        pair.a.flush()
        with await receiving as batch:
            assert len(batch) == 1 and bytes(batch) == b"12345678"

    run(main())


def test_a_task_hears_that_its_part_was_closed(pair):
    async def main():
        receiving = asyncio.create_task(pair.b.arecv())
        await asyncio.sleep(0.01)
        pair.b.close()
        with pytest.raises(pypdbp.Closed):
            await receiving

    run(main())


def test_a_selector_waits_for_the_descriptor(pair):
    poll = select.poll()
    poll.register(pair.b, select.POLLIN)
    assert pair.b.fileno() == pair.b.fileno() >= 0

    def send():
        for n in range(50):
            pair.a.send(pair.to_b, bytes([n]))
            pair.a.flush()

    sending = Thread(send)
    for n in range(50):
        while not pair.b.arm():
            assert poll.poll(SOON * 1000)
        with pair.b.try_recv() as message:
            assert bytes(message) == bytes([n])
    sending.join()
    # Its row may still be full of what was received.
    room = select.poll()
    room.register(pair.a, select.POLLIN)
    while not pair.a.arm(to=pair.to_b, recv=False).send:
        assert room.poll(SOON * 1000)
    with pytest.raises(ValueError, match="nothing to wait for"):
        pair.a.arm(recv=False)


def test_a_loop_that_is_the_host_polls_the_nodes():
    async def main():
        with pypdbp.start(nodes=2, transport="local", progress="host") as cluster:
            a, b = (node.register("part") for node in cluster.nodes)

            async def poll():
                while True:
                    waits = [node.poll() for node in cluster.nodes]
                    assert all(wait is None or wait >= 0 for wait in waits)
                    await asyncio.sleep(0)

            polling = asyncio.create_task(poll())
            receiving = asyncio.create_task(b.arecv())
            await asyncio.sleep(0.01)
            a.send(b.id, b"polled")
            with await receiving as message:
                assert bytes(message) == b"polled"
            polling.cancel()
        with pytest.raises(pypdbp.Closed):
            cluster.node.poll()

    run(main())


def test_where_nobody_polls_a_task_is_told_so():
    with pypdbp.start(nodes=1, progress="inline") as cluster:
        part = cluster.nodes[0].register("part")
        with pytest.raises(pypdbp.PdbpError, match='set "thread"'):
            run(part.arecv())


async def lost(watch):
    """Waits for the event that `cause_event` causes."""
    async for event in watch:
        if event.kind == "unroutable":
            return event


def test_a_task_that_waits_for_an_event_is_woken_by_it(pair, monkeypatch):
    polls, poll = [], pypdbp._pypdbp._poll_event
    monkeypatch.setattr(pypdbp._pypdbp, "_poll_event", lambda watch: polls.append(watch) or poll(watch))
    watch = pair.b.node.watch()

    async def main():
        waiting = asyncio.create_task(lost(watch))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        cause_event(pair)
        event = await waiting
        assert (event.node, event.messages) == (0, 1)

    run(main())
    # When it begins to wait, and for each event: not every 50 ms.
    assert len(polls) <= 5


def test_tasks_share_a_watch_and_one_may_be_cancelled(pair):
    watch = pair.b.node.watch()

    async def main():
        tasks = [asyncio.create_task(lost(watch)) for _ in range(3)]
        await asyncio.sleep(0.01)
        tasks.pop().cancel()
        for _ in tasks:
            cause_event(pair)
        await asyncio.gather(*tasks)

    run(main())


def test_the_end_of_the_cluster_wakes_a_task_that_waits_for_an_event(cluster):
    async def main():
        waiting = asyncio.create_task(lost(cluster.node.watch()))
        await asyncio.sleep(0.1)
        Thread(cluster.close)
        with pytest.raises(pypdbp.Closed):
            await waiting

    run(main())


def test_a_watch_in_a_loop_over_descriptors(pair):
    watch = pair.b.node.watch()
    waits = select.poll()
    waits.register(watch, select.POLLIN)
    causing, events = Thread(cause_event, pair), []
    while "unroutable" not in events:
        events += [event.kind for event in watch]
        if "unroutable" not in events:
            assert waits.poll(1000 * SOON)
    causing.join()
    assert not list(watch) and not waits.poll(0)
    # It is readable until a look has found nothing.
    cause_event(pair)
    assert waits.poll(1000 * SOON)
    next(watch)
    assert waits.poll(0)
    assert not list(watch) and not waits.poll(0)
