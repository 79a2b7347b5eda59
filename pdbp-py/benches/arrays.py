#!/usr/bin/env python3
"""Two ranks, beside mpi4py in the same run: half a round trip of 8 bytes, and arrays that one rank writes and the other sums.

    mpirun -n 2 python pdbp-py/benches/arrays.py

Wants a wheel that was built with `maturin build --release`, numpy and mpi4py.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pypdbp
from mpi4py import MPI  # initialises MPI, which pypdbp then joins

ROUNDS = 30


def best(comm: MPI.Comm, once: Callable[[], object]) -> float:
    """Seconds of the best round."""
    times = []
    for _ in range(ROUNDS):
        comm.Barrier()
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
        lines = [round_trips(comm, part, peer, first)]
        lines += [arrays(comm, part, peer, first, size) for size in (64 << 10, 1 << 20, 4 << 20)]
        if first:
            print("\n".join(lines))
        node.barrier(30)


def round_trips(comm: MPI.Comm, part: pypdbp.Part, peer: pypdbp.Target, first: bool) -> str:
    data, room, count = bytes(8), bytearray(8), 1000

    def ours() -> None:
        for _ in range(count):
            if first:
                part.send(peer, data)
            part.recv().release()
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

    mine, mpi = (best(comm, call) / count / 2 * 1e6 for call in (ours, theirs))
    return f"8 bytes, half a round trip: {mine:8.2f} us, mpi4py {mpi:8.2f} us: {mine / mpi:.2f} times as long"


def arrays(comm: MPI.Comm, part: pypdbp.Part, peer: pypdbp.Target, first: bool, size: int) -> str:
    count, values = max(4, (16 << 20) // size), np.ones(size // 4, "f4")
    whole = size <= part.longest

    def ours() -> None:
        for _ in range(count):
            if first and whole:
                with part.loan(peer, size) as room:
                    np.frombuffer(room, "f4")[:] = values
            elif first:
                part.send(peer, values * 1)
            else:
                with part.recv() as message:
                    np.frombuffer(message, "f4").sum()
        part.flush()

    def theirs() -> None:
        if first:
            buffers = [values * 1 for _ in range(count)]
            MPI.Request.Waitall([comm.Isend(buffer, 1) for buffer in buffers])
        else:
            buffers = [np.empty_like(values) for _ in range(count)]
            for request, buffer in [(comm.Irecv(buffer, 0), buffer) for buffer in buffers]:
                request.Wait()
                buffer.sum()

    mine, mpi = (count * size / best(comm, call) / 1e9 for call in (ours, theirs))
    return f"{size >> 10:5} KiB, written, sent, summed: {mine:6.2f} GB/s, mpi4py {mpi:6.2f} GB/s: {mine / mpi:.2f} times as fast"


if __name__ == "__main__":
    main()
