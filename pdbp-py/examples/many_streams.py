#!/usr/bin/env python3
"""A collector that reads hundreds of streams at a time with one thread: three nodes write a hundred each, a piece of every one in turn, and the fourth
keeps a hash of each.

    python pdbp-py/examples/many_streams.py
"""

from __future__ import annotations

import hashlib
import threading

import pypdbp

WRITERS, STREAMS, ROUNDS = 3, 100, 20
WAIT = 60  # seconds, for anybody


def write(node: pypdbp.Node) -> None:
    with node.register("writer") as part:
        collector = part.find("collector@node0", WAIT)
        writers = [part.open(collector) for _ in range(STREAMS)]
        for i in range(ROUNDS):
            for n, writer in enumerate(writers):
                writer.write(f"{node.name}, stream {n}, line {i}\n".encode())
                writer.flush()  # a piece; without it one is sent when it fills a block
        for writer in writers:
            writer.close()
        node.barrier(WAIT)


def collect(part: pypdbp.Part) -> None:
    hashes: dict[pypdbp.StreamId, hashlib._Hash] = {}
    ended, most = 0, 0
    for piece in part.streams(timeout=WAIT):
        with piece:
            if piece.is_broken:
                raise SystemExit(f"node{piece.source.node} has given up a stream")
            if not piece.is_end:
                hashes.setdefault(piece.stream, hashlib.sha256()).update(piece)  # where it has arrived
                most = max(most, len(hashes))
                continue
        digest = hashes.pop(piece.stream).hexdigest()
        ended += 1
        if ended % 100 == 0:
            print(f"{ended} streams have ended; the last one from node{piece.source.node}: {digest[:16]}")
        if ended == WRITERS * STREAMS:
            break
    print(f"{ended} streams, {most} of them at a time, read by one thread")


def main() -> None:
    with pypdbp.start(nodes=1 + WRITERS, stream_pipes=STREAMS) as cluster:
        part = cluster.node.register("collector")
        threads = [threading.Thread(target=write, args=[node]) for node in cluster.nodes[1:]]
        for thread in threads:
            thread.start()
        collect(part)
        cluster.node.barrier(WAIT)
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
