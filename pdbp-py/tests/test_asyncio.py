"""Waiting in asyncio, and in loops over descriptors."""

import asyncio
import select

import pypdbp
import pytest
from conftest import SOON, Thread


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
    assert pair.a.arm(to=pair.to_b, recv=False).send
    with pytest.raises(ValueError, match="nothing to wait for"):
        pair.a.arm(recv=False)


def test_where_nobody_polls_a_task_is_told_so():
    with pypdbp.start(nodes=1, progress="inline") as cluster:
        part = cluster.nodes[0].register("part")
        with pytest.raises(pypdbp.PdbpError, match='set "thread"'):
            run(part.arecv())
