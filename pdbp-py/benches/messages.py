#!/usr/bin/env python3
"""What a message costs from Python, in one process: best of many rounds, beside a queue of Python and, where it is installed, mpi4py to itself.

    python pdbp-py/benches/messages.py

Build the wheel with `maturin build --release` for this.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

import pypdbp

ROUNDS = 200


def best(count: int, once: Callable[[], object]) -> float:
    """Nanoseconds for each of `count`, in the best round."""
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        once()
        times.append(time.perf_counter_ns() - begin)
    return min(times) / count


def main() -> None:
    with pypdbp.start(nodes=2, transport="local", progress="inline") as cluster:
        a, b = (node.register(name) for node, name in zip(cluster.nodes, "ab"))
        to = a.find("b", 5)
        rows: dict[str, float] = {}
        data, several = bytes(64), range(100)

        def messages() -> None:
            for _ in several:
                a.send(to, data)
            a.flush()
            for _ in several:
                b.recv()

        def viewed() -> None:
            for _ in several:
                a.send(to, data)
            a.flush()
            for _ in several:
                with b.recv() as message, memoryview(message) as view:
                    view[0]

        def empty_loop() -> None:
            for _ in several:
                pass
            for _ in several:
                pass

        loop = best(len(several), empty_loop)
        rows["send(bytes) and recv, 64 bytes"] = best(len(several), messages) - loop
        rows["the same, in `with`, read through a memoryview"] = best(len(several), viewed) - loop

        table = memoryview(bytes(64 * 1000)).cast("B", (1000, 64))
        small = memoryview(bytes(8 * 8000)).cast("B", (8000, 8))

        def batches(rows: memoryview) -> None:
            a.send_rows(to, rows)
            a.flush()
            left = len(rows)
            while left:
                left -= sum(map(len, b.batches()))

        rows["send_rows and batches, 64 bytes"] = best(1000, lambda: batches(table))
        rows["send_rows and batches, 8 bytes"] = best(8000, lambda: batches(small))

        fifo: queue.SimpleQueue[bytes] = queue.SimpleQueue()

        def queued() -> None:
            for _ in several:
                fifo.put(data)
            for _ in several:
                fifo.get()

        rows["queue.SimpleQueue, put and get, no copy"] = best(len(several), queued) - loop
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as why:
            print(f"without mpi4py: {why}")
        else:
            room = bytearray(64)

            def to_itself() -> None:
                for _ in several:
                    MPI.COMM_SELF.Sendrecv(data, 0, recvbuf=room)

            rows["mpi4py, Sendrecv to itself, 64 bytes"] = best(len(several), to_itself) - loop

    one = rows["send(bytes) and recv, 64 bytes"]
    for name, time_ in rows.items():
        print(f"{name:48} {time_:9.1f} ns {time_ / one:7.3f} of send and recv")


if __name__ == "__main__":
    main()
