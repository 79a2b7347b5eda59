"""Clusters over sockets whose processes come, leave, and are killed."""

import asyncio
import signal

import pypdbp
import pytest
from conftest import SOON, free_address, output, python

# Without leases, which a process loses that gets no processor for seconds. Who is killed is found to be at once, on the same host.
WORKER = """
import signal, sys, pypdbp
with pypdbp.start(timeout_ms=60_000, lease_ms=0) as cluster:
    part = cluster.node.register("worker")
    founder = part.find("founder@node0", timeout=60)
    if sys.argv[1] == "writes":
        writer = part.open(founder)
        writer.write(b"a stream")
        writer.flush()
    part.send(founder, b"here")
    part.flush()
    if sys.argv[1] == "reads":
        with part.recv(timeout=60) as message:
            part.send(founder, message)
        part.flush()
        cluster.node.quiesce(60)
    else:
        signal.pause()
"""


def test_what_a_killed_process_has_not_read_comes_back_and_the_next_one_has_its_place():
    address = free_address()
    settings = {"listen": address, "found": True, "nodes": 2, "lease_ms": 0, "outage_ms": 20_000, "timeout_ms": 60_000}
    with pypdbp.start(**settings) as cluster:
        part = cluster.node.register("founder")
        assert part.try_returned() is None
        deaf = python(WORKER, "deaf", PDBP_JOIN=address)
        with part.recv(timeout=SOON) as message:
            worker = message.source
        # So that it does not even take what has come until there is no more room.
        deaf.send_signal(signal.SIGSTOP)
        with pytest.raises(pypdbp.Timeout):
            while True:
                part.send(worker, bytes(50_000), timeout=0.5)
        deaf.kill()
        deaf.communicate()
        returned = []
        with pytest.raises(pypdbp.PeerFailed):
            while True:
                returned.append(part.try_returned())
                part.send(worker, b"x", timeout=SOON)
        next_one = python(WORKER, "reads", PDBP_JOIN=address)
        with part.recv(timeout=SOON) as message:
            worker = message.source
        while one := part.try_returned():
            returned.append(one)
        returned = [one for one in returned if one]
        assert {bytes(one.data[:50_000]) for one in returned} >= {bytes(50_000)}
        assert all(len(one.targets) == 1 and one.command == 0 and not one.of_stream for one in returned)
        part.send(worker, b"to the next one")
        with part.recv(timeout=SOON) as message:
            assert bytes(message) == b"to the next one"
        output(next_one)


def test_members_that_come_and_one_that_is_killed_are_events():
    address = free_address()
    settings = {"listen": address, "found": True, "nodes": 3, "lease_ms": 0, "outage_ms": 20_000, "timeout_ms": 60_000}
    with pypdbp.start(**settings) as cluster:
        node = cluster.node
        watch, part = node.watch(), node.register("founder")
        assert node.members() == [0]

        def await_event(kind):
            while (event := watch.next(SOON)).kind != kind:
                pass
            return event

        leaves, dies = (python(WORKER, how, PDBP_JOIN=address) for how in ("reads", "deaf"))
        joined = sorted(await_event("node_up").node for _ in range(2))
        assert joined == [1, 2] and sorted(node.members()) == [0, 1, 2]
        workers = []
        for _ in joined:
            with part.recv(timeout=SOON) as message:
                workers.append(message.source)
        dies.kill()
        dies.communicate()
        gone = await_event("node_down").node
        assert node.members() == sorted({0, 1, 2} - {gone})
        # The other one leaves of its own accord.
        (left,) = (worker for worker in workers if worker.node != gone)
        part.send(left, b"go")
        with part.recv(timeout=SOON) as message:
            assert bytes(message) == b"go"
        output(leaves)
        event = await_event("node_down")
        assert event.node == left.node and repr(event) == f"<pypdbp.Event node_down node={left.node}>"
        assert node.members() == [0] and watch.lost == 0
        with pytest.raises(pypdbp.Timeout):
            while True:
                watch.next(0.2)
        assert all(event.kind not in ("node_up", "node_down") for event in watch)
        with pytest.raises(pypdbp.PeerFailed):
            while True:
                part.send(left, b"x", timeout=SOON)
    with pytest.raises(pypdbp.Closed):
        watch.next(SOON)


def test_the_event_of_a_broken_stream_says_whose_it_was():
    address = free_address()
    settings = {"listen": address, "found": True, "nodes": 2, "lease_ms": 0, "outage_ms": 20_000, "timeout_ms": 60_000}
    with pypdbp.start(**settings) as cluster:
        watch, part = cluster.node.watch(), cluster.node.register("founder")
        writes = python(WORKER, "writes", PDBP_JOIN=address)
        part.recv(SOON).release()
        with part.accept(SOON) as reader:
            assert reader.read(8) == b"a stream"
            writes.kill()
            writes.communicate()
            with pytest.raises(pypdbp.StreamBroken):
                reader.read(1)
        while (event := watch.next(SOON)).kind != "stream_broken":
            pass
        assert event.node == 1 and event.number is not None


def test_a_task_follows_a_member_that_is_killed():
    address = free_address()
    with pypdbp.start(listen=address, found=True, nodes=2, lease_ms=0, outage_ms=20_000, timeout_ms=60_000) as cluster:
        watch, part = cluster.node.watch(), cluster.node.register("founder")

        async def main():
            member = python(WORKER, "deaf", PDBP_JOIN=address)
            seen = []
            async for event in watch:
                if event.kind in ("node_up", "node_down"):
                    seen.append((event.kind, event.node))
                if event.kind == "node_up":
                    (await part.arecv()).release()
                    member.kill()
                    member.communicate()
                elif event.kind == "node_down":
                    break
            assert seen == [("node_up", 1), ("node_down", 1)]
            # A task that is cancelled while nothing happens loses nothing; one that waits for a cluster that is closed is told so.
            with pytest.raises(asyncio.TimeoutError):
                async with asyncio.timeout(0.3):
                    async for event in watch:
                        assert event.kind not in ("node_up", "node_down"), event
            cluster.close()
            with pytest.raises(pypdbp.Closed):
                async for _ in watch:
                    pass

        asyncio.run(asyncio.wait_for(main(), SOON))
