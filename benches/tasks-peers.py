"""The peers of benches/tasks-peers that are Python packages: tasks-peers.py dask|ray|hyperqueue|memory|spawn [COUNT]."""

import os
import sys
import tempfile
import threading
import time
from subprocess import Popen


def same(n):
    return n


def report(name, began, count):
    print(f"{name:<40} {(time.perf_counter() - began) / count * 1e6:8.0f} µs each", flush=True)


def dask(count=5000):
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.gather(client.map(same, range(100), pure=False))
        began = time.perf_counter()
        client.gather(client.map(same, range(count), pure=False))
        report("Dask", began, count)
        began = time.perf_counter()
        for n in range(100):
            client.submit(same, n, pure=False).result()
        report("Dask, there and back", began, 100)


def ray(count=5000):
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    remote = ray.remote(same)
    ray.get([remote.remote(n) for n in range(100)])
    began = time.perf_counter()
    ray.get([remote.remote(n) for n in range(count)])
    report("Ray", began, count)
    began = time.perf_counter()
    for n in range(100):
        ray.get(remote.remote(n))
    report("Ray, there and back", began, 100)


def hyperqueue(count=1000):
    from hyperqueue import Job
    from hyperqueue.cluster import LocalCluster, WorkerConfig

    with LocalCluster(tempfile.mkdtemp()) as cluster:
        cluster.start_worker(WorkerConfig(cores=2))
        client = cluster.client()

        def submit(tasks):
            job = Job(max_fails=0)
            for n in range(tasks):
                job.program(["/bin/true", str(n)], stdout=None, stderr=None)
            return client.submit(job)

        client.wait_for_jobs([submit(20)])
        began = time.perf_counter()
        client.wait_for_jobs([submit(count)])
        report("HyperQueue, server and worker", began, count)


def resident(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


def memory(count=50_000):
    """Bytes that a queued task takes in the process that queues it: none of them can run."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=0, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):

        def scheduler(dask_scheduler):
            return len(dask_scheduler.tasks)

        # The scheduler is a part of this process, and so is the client.
        before = resident(os.getpid())
        futures = client.map(same, range(count), pure=False)
        while client.run_on_scheduler(scheduler) < count:
            time.sleep(0.1)
        after = resident(os.getpid())
        print(f"{'Dask, scheduler and client':<40} {(after - before) / count:8.0f} bytes a queued task", flush=True)
        del futures

    from hyperqueue import Job
    from hyperqueue.cluster import LocalCluster as HyperQueue

    # The server is a part of this process, too.
    with HyperQueue(tempfile.mkdtemp()) as cluster:
        client = cluster.client()
        job = Job(max_fails=0)
        for _ in range(count):
            job.program(["/bin/true"], stdout=None, stderr=None)
        before = resident(os.getpid())
        client.submit(job)
        after = resident(os.getpid())
        print(f"{'HyperQueue, server':<40} {(after - before) / count:8.0f} bytes a queued task", flush=True)


def spawn(count=1000):
    def half():
        for n in range(count // 2):
            Popen(["/bin/true", str(n)]).wait()

    threads = [threading.Thread(target=half) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    peers = {peer.__name__: peer for peer in (dask, ray, hyperqueue, memory, spawn)}
    peers[sys.argv[1]](*map(int, sys.argv[2:]))
