#!/usr/bin/env python3
"""Two ranks with arrays of a CUDA device, beside mpi4py in the same run: half a round trip from device memory to device memory.

    PDBP_PIN_MEMORY=0 mpirun -n 2 python pdbp-py/benches/devices.py [rounds]

What is compared with is what a program does whose MPI does not know devices: a copy to the host, `Send`, `Recv`, and a copy to the device, once
with memory as numpy has it, and once with pinned memory that is used again. Both ranks use the first device. Wants a wheel that was built with
`maturin build --release`, CuPy and mpi4py.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import cupy as cp
import cupyx
import numpy as np
import pypdbp
from mpi4py import MPI  # initialises MPI, which pypdbp then joins

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 9


def seconds(meet: Callable[[], object], once: Callable[[], object], count: int) -> float:
    """Half a round trip: the median of all rounds but the first. `meet` is a barrier of what is measured."""
    times = []
    for _ in range(ROUNDS + 1):
        meet()
        begin = time.perf_counter()
        for _ in range(count):
            once()
        times.append((time.perf_counter() - begin) / count / 2)
    return statistics.median(times[1:])


def main() -> None:
    comm = MPI.COMM_WORLD
    with pypdbp.start(progress="inline", block_bytes=2 << 20, memory_bytes=128 << 20) as cluster:
        node = cluster.node
        part = node.register("worker")
        peer = part.find(f"worker@node{1 - node.index}", 10)
        first = node.index == 0
        if first:
            print(f"{'bytes':>9} {'pypdbp':>19} {'mpi4py':>19} {'mpi4py, pinned':>19}   times as fast")
        for size in (4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20):
            times = round_trips(comm, part, peer, first, size)
            if first:
                columns = "".join(f"{t * 1e6:9.1f} us {size / t / 1e9:5.2f} GB/s" for t in times)
                mine, plain, pinned = times
                print(f"{size:9} {columns}   {plain / mine:.2f} {pinned / mine:.2f}", flush=True)
        node.barrier(30)


def round_trips(comm: MPI.Comm, part: pypdbp.Part, peer: pypdbp.Target, first: bool, size: int) -> list[float]:
    data, out = cp.arange(size, dtype=cp.uint8) * 7, cp.zeros(size, dtype=cp.uint8)
    pinned, other = cupyx.empty_pinned(size, dtype=cp.uint8), 1 - comm.rank

    def send_plain(array: cp.ndarray) -> None:
        comm.Send(cp.asnumpy(array), other)

    def recv_plain() -> None:
        room = np.empty(size, dtype=np.uint8)
        comm.Recv(room, other)
        out.set(room)
        done()

    def send_pinned(array: cp.ndarray) -> None:
        comm.Send(array.get(out=pinned), other)

    def recv_pinned() -> None:
        comm.Recv(pinned, other)
        out.set(pinned)
        done()

    def done() -> None:
        cp.cuda.get_current_stream().synchronize()

    times = []
    for meet, send, recv in [
        (part.node.barrier, lambda array: part.send_device(peer, array), lambda: part.recv_device(out)),
        (comm.Barrier, send_plain, recv_plain),
        (comm.Barrier, send_pinned, recv_pinned),
    ]:
        out.fill(0)
        done()

        def once(send: Callable[[cp.ndarray], object] = send, recv: Callable[[], object] = recv) -> None:
            if first:
                send(data)
                recv()
            else:
                recv()
                send(out)  # what came goes back

        times.append(seconds(meet, once, max(2, min(200, (64 << 20) // size))))
        assert (out == data).all(), f"what came of {size} bytes is not what was sent"
    return times


if __name__ == "__main__":
    main()
