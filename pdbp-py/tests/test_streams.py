"""Streams as files, and arrays without numpy."""

import array
import ctypes
import io
import shutil

import pypdbp
import pytest
from conftest import SOON, Thread, is_in_call


def test_a_file_is_copied(pair):
    data = bytes(range(256)) * 5000

    def write():
        with pair.a.open(pair.to_b) as writer:
            shutil.copyfileobj(io.BytesIO(data), writer)

    writing = Thread(write)
    with pair.b.accept(SOON) as reader:
        assert (reader.source, reader.readable(), reader.writable()) == (pair.to_a, True, False)
        assert reader.readall() == data
        assert reader.read(1) == b""
    writing.join()
    assert reader.closed


def test_streams_are_raw_files(pair):
    with pair.a.open(pair.to_b) as writer:
        assert isinstance(writer, io.RawIOBase) and writer.writable() and not writer.readable()
        text = io.TextIOWrapper(io.BufferedWriter(writer), encoding="utf-8")
        text.write("one\ntwo\nthrée\n")
        text.close()
    lines = list(io.TextIOWrapper(io.BufferedReader(pair.b.accept(SOON)), encoding="utf-8"))
    assert lines == ["one\n", "two\n", "thrée\n"]
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"too late")
    writer.close()


def test_the_wrong_end_of_a_stream_says_which_it_is(pair):
    with pair.a.open(pair.to_b) as writer:
        with pytest.raises(io.UnsupportedOperation, match="writing end"):
            writer.read(1)
        writer.write(b"x")
    with pair.b.accept(SOON) as reader:
        with pytest.raises(io.UnsupportedOperation, match="reading end"):
            reader.write(b"x")
        assert reader.read() == b"x"


def test_what_is_flushed_arrives(pair):
    with pair.a.open(pair.to_b) as writer:
        writer.write(b"a piece")
        writer.flush()
        with pair.b.accept(SOON) as reader:
            assert reader.read(100) == b"a piece"


@pytest.mark.parametrize("how", ["exception", "abandon", "nobody has it"])
def test_a_stream_that_is_given_up_breaks(pair, how):
    if how == "exception":
        with pytest.raises(KeyError):
            with pair.a.open(pair.to_b) as writer:
                writer.write(b"half")
                writer.flush()
                raise KeyError
        assert writer.closed
    else:
        writer = pair.a.open(pair.to_b)
        writer.write(b"half")
        writer.flush()
        if how == "abandon":
            writer.abandon()
        del writer
    with pair.b.accept(SOON) as reader:
        assert reader.read(4) == b"half"
        with pytest.raises(pypdbp.StreamBroken, match="from part") as raised:
            reader.read(4)
        assert isinstance(raised.value, EOFError) and raised.value.nodes == [reader.source.node]


def test_a_stream_is_dropped_by_another_thread_while_its_part_waits(pair):
    writers = [pair.a.open(pair.to_b)]
    writers[0].write(b"half")
    writers[0].flush()
    reader = pair.b.accept(SOON)

    def drop():
        while not is_in_call(pair.a):
            pass
        writers.clear()
        pair.b.send(pair.to_a, b"go on")
        pair.b.flush()

    dropping = Thread(drop)
    assert bytes(pair.a.recv(SOON)) == b"go on"
    dropping.join()
    assert reader.read(4) == b"half"
    with pytest.raises(pypdbp.StreamBroken):
        reader.read(4)


def test_readers_fill_only_what_can_be_written(pair):
    with pair.a.open(pair.to_b) as writer:
        writer.write(b"bytes")
    with pair.b.accept(SOON) as reader:
        with pytest.raises(BufferError):
            reader.readinto(b"read-only")
        room = bytearray(8)
        assert reader.readinto_all(room) == 5 and bytes(room) == b"bytes\0\0\0"


def test_no_stream_is_a_timeout(pair):
    with pytest.raises(pypdbp.Timeout):
        pair.b.accept(0.01)


@pytest.mark.parametrize("code", "bBhHiIlLqQfd")
def test_arrays_without_numpy(pair, code):
    sent = array.array(code, range(24))
    sending = Thread(pair.a.send_array, pair.to_b, memoryview(sent).cast("B").cast(code, (4, 6)))
    out = memoryview(array.array(code, bytes(24 * sent.itemsize))).cast("B").cast(code, (4, 6))
    assert pair.b.recv_array(out=out, timeout=SOON) is out
    sending.join()
    assert out.tolist() == memoryview(sent).cast("B").cast(code, (4, 6)).tolist()


def test_an_array_that_does_not_fit_is_refused_by_shape_and_format(pair):
    for out in array.array("f", range(5)), array.array("i", range(4)), bytearray(16):
        pair.a.send_array(pair.to_b, array.array("f", range(4)))
        with pytest.raises(ValueError, match="shape"):
            pair.b.recv_array(out=out, timeout=SOON)
    pair.a.send_array(pair.to_b, array.array("f", range(4)))
    out = array.array("f", bytes(16))
    pair.b.recv_array(out=out, timeout=SOON)
    assert out.tolist() == [0, 1, 2, 3]


class Sample(ctypes.Structure):
    _fields_ = [("Offset", ctypes.c_float), ("n", ctypes.c_int)]


class Labelled(ctypes.Structure):
    _fields_ = [("Offset", ctypes.c_float), ("label", ctypes.py_object)]


class Misleading(ctypes.Structure):
    _fields_ = [(":n", ctypes.c_int), ("label", ctypes.py_object), (":m", ctypes.c_int)]


def test_the_name_of_a_field_is_no_object(pair):
    samples = (Sample * 3)((1.5, 1), (2.5, 2), (3.5, 3))
    pair.a.send(pair.to_b, samples)
    assert bytes(pair.b.recv(SOON)) == bytes(samples)
    sending = Thread(pair.a.send_array, pair.to_b, samples)
    out = (Sample * 3)()
    assert pair.b.recv_array(out=out, timeout=SOON) is out
    sending.join()
    assert bytes(out) == bytes(samples)
    for kind in Labelled, Misleading:
        for send in pair.a.send, pair.a.send_rows, pair.a.send_array:
            with pytest.raises(BufferError, match="objects"):
                send(pair.to_b, (kind * 2)())


def test_an_array_that_cannot_be_sent_opens_no_stream():
    with pypdbp.start(nodes=1, transport="local", stream_pipes=1) as cluster:
        part = cluster.node.register("part")
        with part.open(part.id):
            with pytest.raises(BufferError, match="objects"):
                part.send_array(part.id, (Labelled * 2)())


@pytest.mark.parametrize("start", [b"", b"PDBA", b"no array at all", b"PDBA\x02<\x01\x01f" + bytes(8), b"PDBA\x01?\x01\x01f" + bytes(8)])
def test_a_stream_that_is_no_array(pair, start):
    with pair.a.open(pair.to_b) as writer:
        writer.write(start)
    with pytest.raises(pypdbp.PdbpError, match="no array|version|byte order"):
        pair.b.recv_array(timeout=SOON)


def test_an_array_that_ends_early(pair):
    with pair.a.open(pair.to_b) as writer:
        writer.write(b"PDBA\x01" + (b"<" if array.array("H", [1]).tobytes()[0] else b">") + b"\x01\x01f")
        writer.write(array.array("Q", [10]))
        writer.write(bytes(20))
    with pytest.raises(pypdbp.PdbpError, match="20 bytes of 40"):
        pair.b.recv_array(out=array.array("f", bytes(40)), timeout=SOON)


def test_a_part_receives_while_it_writes(pair):
    data = bytes(range(256)) * 40_000

    def answer():
        # More than there is room for, before anything is read.
        for number in range(5000):
            pair.b.send(pair.to_a, number.to_bytes(2, "little") * 1000)
        pair.b.flush()
        with pair.b.accept(SOON) as reader:
            return reader.readall()

    numbers = []

    def receive(message):
        numbers.append(int.from_bytes(bytes(message)[:2], "little"))

    answering = Thread(answer)
    with pair.a.open(pair.to_b) as writer:
        assert writer.write_or(b"", receive) == 0
        assert writer.write_or(memoryview(data).cast("I"), receive) == len(data)
        writer.write(b"the end")
    assert answering.join() == data + b"the end"
    while len(numbers) < 5000:
        receive(pair.a.recv(SOON))
    assert numbers == list(range(5000)) and pair.a.try_recv() is None


def test_a_stream_that_nobody_accepts_does_not_keep_a_writer_from_waiting():
    with pypdbp.start(nodes=2, transport="local", timeout_ms=60_000) as cluster:
        a, b = (node.register(name) for node, name in zip(cluster.nodes, "ab"))
        unread = b.open(a.id)
        unread.write(b"unread")
        unread.flush()
        while not a.wait(timeout=SOON).stream:
            pass
        writer = a.open(b.id)
        writing = Thread(writer.write_or, bytes(1 << 26), lambda message: pytest.fail("nobody has sent anything"))
        cluster.nodes[0].interrupt()
        with pytest.raises(pypdbp.Interrupted):
            writing.join()


def test_a_writer_whose_part_is_in_use_can_be_closed_later(pair):
    writer = pair.a.open(pair.to_b)
    writer.write(b"all of it")
    receiving = Thread(pair.a.recv, SOON)
    while not is_in_call(pair.a):
        pass
    with pytest.raises(pypdbp.Busy):
        writer.close()
    assert not writer.closed
    pair.b.send(pair.to_a, b"go on")
    pair.b.flush()
    receiving.join()
    writer.close()
    assert writer.closed and pair.b.accept(SOON).readall() == b"all of it"


def test_what_receives_may_raise_and_use_the_part(pair):
    def receive(message):
        assert pair.a.find("b", SOON) == message.source and pair.a.try_recv() is None
        raise KeyError(bytes(message))

    pair.b.send(pair.to_a, b"stop")
    pair.b.flush()
    writer = pair.a.open(pair.to_b)
    with pytest.raises(KeyError, match="stop"):
        writer.write_or(bytes(1 << 26), receive)
    writer.abandon()
    with pytest.raises(ValueError, match="closed"):
        writer.write_or(b"", receive)
