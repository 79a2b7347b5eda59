"""All streams to a part, read by one thread or task."""

import asyncio

import pypdbp
import pytest
from conftest import SOON, Thread, is_in_call


def begin(part, to, data):
    writer = part.open(to)
    writer.write(data)
    writer.flush()
    return writer


def test_one_thread_reads_many_streams(pair):
    count = 40

    def write():
        writers = [pair.a.open(pair.to_b) for _ in range(count)]
        for i in range(10):
            for n, writer in enumerate(writers):
                writer.write(bytes([n, i]))
                writer.flush()
        for n, writer in enumerate(writers):
            if n % 4:
                writer.close()
            else:
                writer.abandon()

    writing = Thread(write)
    got, ends = {}, []
    for piece in pair.b.streams(timeout=SOON):
        with piece:
            assert piece and piece.source == piece.stream.source == pair.to_a
            if piece.is_end or piece.is_broken:
                assert len(piece) == 0 and bytes(piece) == b""
                ends.append((got.pop(piece.stream), piece.is_broken))
                if len(ends) == count:
                    break
            else:
                got[piece.stream] = got.get(piece.stream, b"") + bytes(piece)
    writing.join()
    assert sorted(ends) == [(bytes(x for i in range(10) for x in (n, i)), n % 4 == 0) for n in range(count)]
    assert not got and pair.b.messages_held == 0


def test_pieces_are_read_in_place_as_messages_are(pair):
    writer = begin(pair.a, pair.to_b, b"a piece")
    streams = pair.b.streams()
    piece = streams.next(SOON)
    assert repr(piece).startswith("<pypdbp.Piece of 7 bytes") and pair.b.messages_held == 1
    view = memoryview(piece)
    assert view.readonly and view == b"a piece" == piece.tobytes()
    with pytest.raises(BufferError):
        piece.release()
    del view
    piece.release()
    assert piece.released and pair.b.messages_held == 0
    with pytest.raises(pypdbp.Closed):
        len(piece)
    assert piece.stream == piece.stream and piece.stream in {piece.stream}
    with pytest.raises(pypdbp.Timeout, match="written to a stream"):
        streams.next(0.01)
    with pytest.raises(pypdbp.Timeout):
        streams.next(0)
    assert streams.try_next() is None and list(pair.b.streams(timeout=0)) == [] == list(pair.b.streams(timeout=0.01))
    writer.close()
    while not (last := streams.next(30)).is_end:
        pass
    assert not last.is_broken and "the end of a stream" in repr(last)


def test_what_an_iteration_leaves_is_for_the_next_one_and_a_with_gives_it_up(pair):
    writer = begin(pair.a, pair.to_b, b"one")
    for piece in pair.b.streams():
        assert bytes(piece) == b"one"
        break
    writer.write(b"two")
    writer.flush()
    with pair.b.streams() as streams:
        assert bytes(streams.next(SOON)) == b"two"
    writer.write(b"in vain")
    writer.close()
    other = begin(pair.a, pair.to_b, b"other")
    assert bytes(pair.b.streams().next(SOON)) == b"other"
    other.close()


def test_a_stream_is_given_up_and_others_go_on(pair):
    writers = [begin(pair.a, pair.to_b, name) for name in (b"one", b"two")]
    streams = pair.b.streams()
    one, two = streams.next(SOON), streams.next(SOON)
    assert (bytes(one), bytes(two)) == (b"one", b"two") and one.stream != two.stream
    one.release()
    two.release()
    streams.give_up(one.stream)
    for writer in writers:
        writer.write(b"more")
        writer.flush()
    piece = streams.next(SOON)
    assert piece.stream == two.stream and bytes(piece) == b"more"
    streams.give_up(one.stream)
    with pytest.raises(TypeError):
        streams.give_up(1)


def test_a_stream_that_was_accepted_is_left_to_its_reader(pair):
    accepted = begin(pair.a, pair.to_b, b"accepted")
    with pair.b.accept(SOON) as reader:
        together = begin(pair.a, pair.to_b, b"together")
        assert bytes(pair.b.streams().next(SOON)) == b"together"
        assert reader.read(100) == b"accepted"
    accepted.close()
    together.close()


def test_a_wait_ends_for_pieces_too(pair):
    writer = begin(pair.a, pair.to_b, b"one")
    for text in b"one", b"two":
        ready = pair.b.wait(timeout=SOON)
        assert ready.stream and not ready.recv
        assert bytes(pair.b.streams().next(SOON)) == text
        assert not pair.b.arm()
        writer.write(b"two")
        writer.flush()


def test_who_reads_hears_that_the_part_was_closed(pair):
    reading = Thread(lambda: pair.b.streams().next())
    while not is_in_call(pair.b):
        pass
    pair.cluster.close()
    with pytest.raises(pypdbp.Closed):
        reading.join()


def run(task):
    return asyncio.run(asyncio.wait_for(task, SOON))


def test_a_task_reads_many_streams_while_others_receive(pair):
    async def main():
        receiving = asyncio.create_task(pair.b.arecv())
        sums = {}

        async def read():
            async for piece in pair.b.streams():
                with piece:
                    if piece.is_end:
                        sums[piece.stream] = sum(sums[piece.stream])
                        if len(sums) == 30 and not any(isinstance(one, list) for one in sums.values()):
                            return
                    else:
                        sums.setdefault(piece.stream, []).extend(bytes(piece))

        reading = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        writers = [pair.a.open(pair.to_b) for _ in range(30)]
        for n, writer in enumerate(writers):
            for _ in range(5):
                writer.write(bytes([n]))
                writer.flush()
                await asyncio.sleep(0)
            writer.close()
        await reading
        assert sorted(sums.values()) == [5 * n for n in range(30)]
        pair.a.send(pair.to_b, b"a message")
        pair.a.flush()
        assert bytes(await receiving) == b"a message"
        # None comes any more, in time.
        assert [piece async for piece in pair.b.streams(timeout=0.05)] == []

    run(main())


def test_a_task_that_receives_lets_the_loop_go_on_while_a_stream_waits(pair):
    async def main():
        writer = begin(pair.a, pair.to_b, b"unread")
        pair.b.wait(timeout=SOON)
        receiving = asyncio.create_task(pair.b.arecv())
        await asyncio.sleep(0.01)
        pair.a.send(pair.to_b, b"")
        pair.a.flush()
        assert len(await receiving) == 0
        # And the other way round.
        pair.a.send(pair.to_b, b"unread")
        pair.a.flush()
        assert bytes(await pair.b.streams().anext()) == b"unread"
        reading = asyncio.create_task(pair.b.streams().anext())
        await asyncio.sleep(0.01)
        writer.write(b"now")
        writer.flush()
        assert bytes(await reading) == b"now"

    run(main())
