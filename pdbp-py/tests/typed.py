"""What type checkers must accept. `ci/python` gives this to mypy, and nobody runs it."""

from __future__ import annotations

import io
import shutil

import numpy as np
import pypdbp


def calls(part: pypdbp.Part, to: pypdbp.Target) -> None:
    table = np.zeros((3, 4))
    part.send(to, table)
    part.send_rows(to, table)
    part.send_all((to, part.id), table)
    part.send_array(to, table)
    part.recv_array(out=table)
    with part.recv_batch() as batch:
        for message in batch:
            print(message[0])
    with part.open(to) as writer:
        writer.write(table)
        writer.write_or(table, lambda message: message.release())
        shutil.copyfileobj(io.BytesIO(b"bytes"), writer)
    with part.accept() as reader:
        reader.readinto(table)
        reader.readinto_all(table)
    with part.group("pair", ("a@node0", "b@node1")) as group, part.group("other", ["a@node0"]):
        group.all_reduce(table)
        print(table.reshape(-1)[group.reduce_scatter(table)])


async def tasks(part: pypdbp.Part, node: pypdbp.Node, to: pypdbp.Target) -> None:
    await part.asend(to, np.zeros(3))
    with await part.arecv() as message:
        print(memoryview(message), message.source)
    async for piece in part.streams():
        piece.release()
    async for event in node.watch():
        print(event.kind, {node: event.node})
