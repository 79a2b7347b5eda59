#!/usr/bin/env python3
"""Calls of groups beside those of mpi4py in the same run, on arrays of numpy: the mean of many calls, the best of so many rounds.

    mpirun -n 2 python pdbp-py/benches/groups.py [rounds]

With other work on the machine Open MPI wants `--mca mpi_yield_when_idle 1`. Wants a wheel that was built with `maturin build --release`, numpy and mpi4py.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import pypdbp
from mpi4py import MPI  # initialises MPI, which pypdbp then joins

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 20


def main() -> None:
    comm = MPI.COMM_WORLD
    with pypdbp.start(progress="inline") as cluster, cluster.node.group("all", timeout=60) as group:

        def best(calls: int, once: Callable[[], object]) -> float:
            """Microseconds of a call, at the member for which the round took longest."""
            times = []
            for _ in range(ROUNDS):
                group.barrier()
                begin = time.perf_counter()
                for _ in range(calls):
                    once()
                times.append(time.perf_counter() - begin)
            longest = np.array(min(times))
            group.all_reduce(longest, op="max")
            return float(longest) / calls * 1e6

        def row(what: str, calls: int, mine: Callable[[], object], theirs: Callable[[], object]) -> None:
            # In turns, so that a slow time of the machine is one for both.
            first, second = best(calls, mine), best(calls, theirs)
            mine_us, theirs_us = min(first, best(calls, mine)), min(second, best(calls, theirs))
            if group.rank == 0:
                print(f"{what:24} {mine_us:9.2f} us, mpi4py {theirs_us:9.2f} us: {mine_us / theirs_us:.2f} times as long", flush=True)

        row("barrier", 2000, group.barrier, comm.Barrier)
        for size in (8, 1 << 10, 64 << 10, 1 << 20):
            calls = max(10, min(2000, (8 << 20) // size))
            ones, sums = np.ones(size // 8), np.empty(size // 8)
            every, given = np.empty(size // 8 * group.size), np.ones(size // 8)
            row(f"broadcast {size} B", calls, lambda: group.broadcast(ones), lambda: comm.Bcast(ones))
            row(f"all_reduce {size} B", calls, lambda: group.all_reduce(sums, "max"), lambda: comm.Allreduce(MPI.IN_PLACE, sums, MPI.MAX))
            row(f"all_gather {size} B each", calls, lambda: group.all_gather(given, every), lambda: comm.Allgather(given, every))
        cluster.node.barrier(30)


main()
