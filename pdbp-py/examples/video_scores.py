#!/usr/bin/env python3
"""How sharp and how blocky clips are: two nodes decode them with PyAV, two others score the pictures with numpy.

    pip install av numpy
    python pdbp-py/examples/video_scores.py pdbp-video/clips/*.h264

All four nodes are threads of this process. As four processes, on one host or on several, with the same clips in each:

    PDBP_LISTEN=127.0.0.1:7210 PDBP_NODES=4 python video_scores.py …       # the first
    PDBP_JOIN=127.0.0.1:7210 python video_scores.py …                      # and three of these
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pypdbp

DECODERS, SCORERS = (0, 1), (2, 3)
WAIT = 60  # seconds, for anybody
Array = np.ndarray[Any, np.dtype[Any]]
HEADER = np.dtype([("clip", "u4"), ("number", "u4"), ("height", "u4"), ("width", "u4")])
SCORE = np.dtype([("clip", "u4"), ("number", "u4"), ("sharpness", "f8"), ("blockiness", "f8")])


def pictures(clip: str) -> Iterator[Array]:
    """The brightness of each picture of a clip."""
    with av.open(clip) as file:
        for frame in file.decode(video=0):
            yield frame.to_ndarray(format="gray")


def decode(node: pypdbp.Node, clips: list[str]) -> None:
    """Sends every picture of this node's share of the clips to the scorers in turn."""
    with node.register("decoder") as part:
        scorers = [part.find(f"scorer@node{i}", WAIT) for i in SCORERS]
        sent = 0
        for clip in range(node.index, len(clips), len(DECODERS)):
            for number, picture in enumerate(pictures(clips[clip])):
                send_picture(part, scorers[sent % len(scorers)], (clip, number, *picture.shape), picture)
                sent += 1
        for scorer in scorers:
            part.send(scorer, b"")  # the end
        node.barrier(WAIT)


def send_picture(part: pypdbp.Part, to: pypdbp.Target, header: tuple[int, ...], picture: Array) -> None:
    def fill(room: Array) -> None:
        room[: HEADER.itemsize].view(HEADER)[0] = header
        room[HEADER.itemsize :].reshape(picture.shape)[:] = picture

    size = HEADER.itemsize + picture.size
    if size <= part.longest:
        with part.loan(to, size) as room:  # straight into the block that leaves
            fill(np.frombuffer(room, "u1"))
    else:
        message = np.empty(size, "u1")
        fill(message)
        part.send(to, message)


def score(node: pypdbp.Node) -> None:
    """Scores pictures where they have arrived."""
    with node.register("scorer") as part:
        report = part.find(f"report@node{DECODERS[0]}", WAIT)
        ends = 0
        while ends < len(DECODERS):
            with part.recv(WAIT) as message:
                if len(message) == 0:
                    ends += 1
                else:
                    part.send(report, scores_of(message))
        part.send(report, b"")
        node.barrier(WAIT)


def scores_of(message: pypdbp.Message) -> Array:
    header = np.frombuffer(message, HEADER, count=1)[0]
    picture = np.frombuffer(message, "u1", offset=HEADER.itemsize).reshape(header["height"], header["width"])
    across = np.abs(np.diff(picture.astype("i2"), axis=1)).mean(axis=0)
    # Column 7 is the step from one block of eight to the next.
    border = np.arange(len(across)) % 8 == 7
    blockiness = across[border].mean() / max(across[~border].mean(), 1e-9)
    return np.array([(header["clip"], header["number"], across.mean(), blockiness)], SCORE)


def report(part: pypdbp.Part, clips: list[str]) -> None:
    scores: dict[int, list[Any]] = defaultdict(list)
    ends = 0
    while ends < len(SCORERS):
        with part.recv(WAIT) as message:
            if len(message) == 0:
                ends += 1
            else:
                row = np.frombuffer(message, SCORE)[0].copy()
                scores[int(row["clip"])].append(row)
    print(f"{'clip':24} {'pictures':>8} {'sharpness':>9} {'blockiness':>10}")
    for clip, rows in sorted(scores.items()):
        table = np.array(rows)
        means = table["sharpness"].mean(), table["blockiness"].mean()
        print(f"{Path(clips[clip]).name:24} {len(table):8} {means[0]:9.2f} {means[1]:10.3f}")


def main(clips: list[str]) -> None:
    # Blocks that hold a picture each, but for the largest.
    with pypdbp.start(nodes=4, block_bytes=256 << 10) as cluster:
        jobs: list[Callable[[], None]] = []
        for node in cluster.nodes:
            if node.index == DECODERS[0]:
                jobs.append(partial(report, node.register("report"), clips))
            jobs.append(partial(decode, node, clips) if node.index in DECODERS else partial(score, node))
        threads = [threading.Thread(target=job) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
