#!/usr/bin/env python3
"""Two ranks, beside mpi4py in the same run: half a round trip of 8 bytes, and arrays that one rank writes and the other sums.

    mpirun -n 2 python pdbp-py/benches/arrays.py [rounds]

With other work on the machine Open MPI wants `--mca mpi_yield_when_idle 1`. Wants a wheel that was built with `maturin build --release`, numpy and mpi4py.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import pypdbp
from mpi4py import MPI  # initialises MPI, which pypdbp then joins

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 30


def best(meet: Callable[[], object], once: Callable[[], object]) -> float:
    """Seconds of the best round. `meet` is a barrier: with the progress "inline" a rank that waits in a barrier of MPI hands nothing on."""
    times = []
    for _ in range(ROUNDS):
        meet()
        begin = time.perf_counter()
        once()
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    comm = MPI.COMM_WORLD
    with pypdbp.start(progress="inline", block_bytes=1 << 20) as cluster:
        node = cluster.node
        part = node.register("worker")
        peer = part.find(f"worker@node{1 - node.index}", 10)
        first = node.index == 0
        lines = round_trips(comm, part, peer, first)
        lines += [arrays(comm, part, peer, first, size) for size in (64 << 10, 1 << 20, 4 << 20)]
        lines += [streams(comm, part, peer, first, 16 << 20)]
        if first:
            print("\n".join(lines))
        node.barrier(30)


def round_trips(comm: MPI.Comm, part: pypdbp.Part, peer: pypdbp.Target, first: bool) -> list[str]:
    data, room, count = bytes(8), bytearray(8), 1000

    def waiting() -> None:
        for _ in range(count):
            if first:
                part.send(peer, data)
            part.recv().release()
            if not first:
                part.send(peer, data)
        part.flush()

    def polling() -> None:
        poll = part.try_recv
        for _ in range(count):
            if first:
                part.send(peer, data)
                part.flush()
            while poll() is None:
                pass
            if not first:
                part.send(peer, data)
                part.flush()

    def theirs() -> None:
        for _ in range(count):
            if first:
                comm.Send(data, 1)
            comm.Recv(room, 1 - comm.rank)
            if not first:
                comm.Send(data, 0)

    meet = part.node.barrier
    calls = [(meet, polling), (meet, waiting), (comm.Barrier, theirs)]
    polled, waited, mpi = (best(meet, call) / count / 2 * 1e6 for meet, call in calls)
    return [
        f"8 bytes, half a round trip, {how}: {mine:8.2f} us, mpi4py {mpi:8.2f} us: {mine / mpi:.2f} times as long"
        for how, mine in [("by try_recv", polled), ("by recv, which sleeps where processors are taken", waited)]
    ]


def arrays(comm: MPI.Comm, part: pypdbp.Part, peer: pypdbp.Target, first: bool, size: int) -> str:
    count, values = max(4, (16 << 20) // size), np.ones(size // 4, "f4")
    whole = size <= part.longest
    buffers = [np.empty_like(values) for _ in range(count)]

    def ours() -> None:
        for _ in range(count):
            if first and whole:
                with part.loan(peer, size) as room:
                    np.frombuffer(room, "f4")[:] = values
            elif first:
                buffers[0][:] = values
                part.send(peer, buffers[0])
            else:
                with part.recv() as message:
                    np.frombuffer(message, "f4").sum()
        part.flush()

    def theirs(buffers: list[np.ndarray]) -> None:
        if first:
            requests = []
            for buffer in buffers:
                buffer[:] = values
                requests.append(comm.Isend(buffer, 1))
            MPI.Request.Waitall(requests)
        else:
            for request, buffer in [(comm.Irecv(buffer, 0), buffer) for buffer in buffers]:
                request.Wait()
                buffer.sum()

    calls = [
        (part.node.barrier, ours),
        (comm.Barrier, lambda: theirs([np.empty_like(values) for _ in range(count)])),
        (comm.Barrier, lambda: theirs(buffers)),
    ]
    mine, new, again = (count * size / best(*call) / 1e9 for call in calls)
    return (
        f"{size >> 10:5} KiB, written, sent, summed: {mine:6.2f} GB/s, {mine / new:.2f} times as fast as mpi4py ({new:.2f}), "
        f"{mine / again:.2f} times where that uses its buffers again ({again:.2f})"
    )


def streams(comm: MPI.Comm, part: pypdbp.Part, peer: pypdbp.Target, first: bool, size: int) -> str:
    """send_array beside the same bytes by a stream: `write` and `readinto_all` are a call of the runtime's each."""
    sent, got = np.ones(size // 4, "f4"), np.empty(size // 4, "f4")

    def array() -> None:
        if first:
            part.send_array(peer, sent)
        else:
            part.recv_array(out=got)

    def stream() -> None:
        if first:
            with part.open(peer) as writer:
                writer.write(sent)
        else:
            with part.accept() as reader:
                reader.readinto_all(got)

    def theirs() -> None:
        if first:
            comm.Send(sent, 1)
        else:
            comm.Recv(got, 0)

    meet = part.node.barrier
    mine, bare, mpi = (size / best(*call) / 1e9 for call in ((meet, array), (meet, stream), (comm.Barrier, theirs)))
    return (
        f"{size >> 10:5} KiB by send_array: {mine:6.2f} GB/s, {mine / bare:.2f} times as fast as a stream of the runtime, "
        f"{mine / mpi:.2f} times as fast as Send and Recv of mpi4py"
    )


if __name__ == "__main__":
    main()
