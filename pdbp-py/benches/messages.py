#!/usr/bin/env python3
"""What a message costs from Python, in one process: best of many rounds, beside a queue of Python, what Python itself takes for views, and, where
it is installed, mpi4py to itself; and how long Ctrl-C takes to end a call that waits.

    python pdbp-py/benches/messages.py

Build the wheel with `maturin build --release` for this.
"""

from __future__ import annotations

import queue
import signal
import statistics
import threading
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
                memoryview(b.recv())[0]

        def viewed_with() -> None:
            for _ in several:
                a.send(to, data)
            a.flush()
            for _ in several:
                with b.recv() as message, memoryview(message) as view:
                    view[0]

        own = bytearray(64)

        def views_of_python() -> None:
            for _ in several:
                memoryview(own)[0]

        def with_of_python() -> None:
            for _ in several:
                # Two, as above: of an object that costs nothing to make.
                with memoryview(own) as message, memoryview(message) as view:
                    view[0]

        def empty_loop() -> None:
            for _ in several:
                pass
            for _ in several:
                pass

        loop = best(len(several), empty_loop)
        rows["send(bytes) and recv, 64 bytes"] = best(len(several), messages) - loop
        rows["the same, read through a memoryview"] = best(len(several), viewed) - loop
        rows["the same, in two `with`"] = best(len(several), viewed_with) - loop
        rows["of Python's own bytes: a memoryview"] = best(len(several), views_of_python) - loop / 2
        rows["of Python's own bytes: in two `with`"] = best(len(several), with_of_python) - loop / 2

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

        ends = [end_of_a_wait(b) for _ in range(21)]

    one = rows["send(bytes) and recv, 64 bytes"]
    for name, time_ in rows.items():
        print(f"{name:48} {time_:9.1f} ns {time_ / one:7.3f} of send and recv")
    print(f"Ctrl-C ends a call that waits after {statistics.median(ends):.1f} ms (median of {len(ends)}; the longest {max(ends):.1f})")


def end_of_a_wait(part: pypdbp.Part) -> float:
    """Milliseconds from a SIGINT, while the main thread waits, to its exception."""
    sent = 0

    def interrupt() -> None:
        nonlocal sent
        time.sleep(0.02)
        sent = time.perf_counter_ns()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        part.recv(60)
    except KeyboardInterrupt:
        took = time.perf_counter_ns() - sent
    thread.join()
    return took / 1e6


if __name__ == "__main__":
    main()
