"""Messages, commands, batches, and who can be sent to."""

import array
import copy
import pickle
import sys
import threading

import pypdbp
import pytest
from conftest import SOON, Thread, is_in_call


def test_a_target_of_nobody_is_not_found(pair):
    nobody = pypdbp.Target.from_bits(int(pair.to_b) + 5)
    calls = [
        lambda: pair.a.send(nobody, b"x"),
        lambda: pair.a.send(nobody, b"x", timeout=0),
        lambda: pair.a.send_command(nobody, 1),
        lambda: pair.a.send_all([pair.to_b, nobody], b"x"),
        lambda: pair.a.send_rows(nobody, b"xy"),
        lambda: pair.a.loan(nobody, 1),
        lambda: pair.a.open(nobody),
    ]
    for call in calls:
        with pytest.raises(pypdbp.NotFound, match="does not exist"):
            call()


def test_a_message_arrives_with_its_source(pair):
    pair.a.send(pair.to_b, b"hello")
    with pair.b.recv(SOON) as message:
        assert (bytes(message), len(message), message.source, message.is_command) == (b"hello", 5, pair.to_a, False)
    assert message.released
    with pytest.raises(pypdbp.Closed):
        message.tobytes()


@pytest.mark.parametrize("size", [0, 1, 8, 4096, 65_536, 65_537, 3_000_000])
def test_messages_of_any_length(pair, size):
    data = bytes(i % 251 for i in range(min(size, 1000))) * (size // 1000 + 1)
    data = data[:size]
    # Beside the reader, since a long message needs room there first.
    sender = Thread(pair.a.send, pair.to_b, data)
    with pair.b.recv(SOON) as message:
        assert message.tobytes() == data
    sender.join()


def test_rows_longer_than_a_block_are_messages_too():
    with pypdbp.start(nodes=2, transport="local", block_bytes=4096, timeout_ms=60_000) as cluster:
        a, b = (node.register("part") for node in cluster.nodes)
        # Fewer bytes than are copied with the GIL.
        table = memoryview(bytes(i % 251 for i in range(30_000))).cast("B", (3, 10_000))
        with pytest.raises(pypdbp.TooLong):
            a.send_rows(b.id, table, timeout=0)
        sending = Thread(a.send_rows, b.id, table)
        for i in range(3):
            assert b.recv(SOON).tobytes() == table.tobytes()[i * 10_000 :][:10_000]
        assert sending.join() == 3


def test_anything_with_contiguous_bytes_can_be_sent(pair):
    for data in b"abcd", bytearray(b"abcd"), memoryview(b"abcd"), array.array("B", b"abcd"), memoryview(b"abcd").cast("I"):
        pair.a.send(pair.to_b, data)
        assert pair.b.recv(SOON).tobytes() == b"abcd"


def test_what_is_sent_is_not_held(pair):
    data, resized = b"some bytes", bytearray(b"some bytes")
    before = sys.getrefcount(data), sys.getrefcount(resized)
    for _ in range(100):
        pair.a.send(pair.to_b, data)
        pair.a.send(pair.to_b, resized)
        with pytest.raises(pypdbp.NotFound):
            pair.a.find("nobody", 0)
        [pair.b.recv(SOON).release() for _ in range(2)]
    assert (sys.getrefcount(data), sys.getrefcount(resized)) == before
    resized.extend(b"no view is left that forbids it")


def test_bytes_that_are_not_contiguous_are_refused(pair):
    with pytest.raises(BufferError, match="contiguous"):
        pair.a.send(pair.to_b, memoryview(b"abcdefgh")[::2])
    with pytest.raises(BufferError, match="contiguous"):
        pair.a.send_rows(pair.to_b, memoryview(b"abcdefgh")[::2])
    assert pair.b.try_recv() is None


@pytest.mark.parametrize("size", [60_000, 3_000_000])
def test_bytes_that_change_while_they_are_sent_arrive_as_either(pair, size):
    data, over = bytearray(size), threading.Event()

    def change():
        while not over.is_set():
            for byte in b"ab":
                data[:] = bytes([byte]) * size

    def send():
        for _ in range(20):
            pair.a.send(pair.to_b, data)

    changing, sending = Thread(change), Thread(send)
    try:
        for _ in range(20):
            with pair.b.recv(SOON) as message:
                assert len(message) == size and not message.tobytes().strip(b"ab\0")
        sending.join()
    finally:
        over.set()
    changing.join()


def test_an_array_that_is_being_sent_keeps_its_size(pair):
    # Nobody reads it, so that it waits for room half-way.
    data = bytearray(48 << 20)
    sending = Thread(pair.a.send, pair.to_b, data, 60)
    while not is_in_call(pair.a):
        pass
    with pytest.raises(BufferError):
        data.extend(b"more")
    pair.cluster.nodes[0].interrupt()
    with pytest.raises(pypdbp.Interrupted):
        sending.join()
    data.extend(b"more")


@pytest.mark.parametrize("what", ["text", 7, None, ["a"], {"a": 1}])
def test_nothing_is_pickled(pair, what):
    with pytest.raises(TypeError, match="bytes-like"):
        pair.a.send(pair.to_b, what)


def test_commands_overtake_messages(pair):
    pair.a.send(pair.to_b, b"first")
    pair.a.flush()
    assert pair.b.wait(timeout=SOON).recv
    pair.a.send_command(pair.to_b, 7, b"now")
    pair.a.send_command(pair.to_b, 65_535)
    pair.cluster.node.quiesce(SOON)
    received = [pair.b.recv(SOON) for _ in range(3)]
    assert [(m.command, m.is_command, bytes(m)) for m in received] == [
        (7, True, b"now"),
        (65_535, True, b""),
        (0, False, b"first"),
    ]
    with pytest.raises(pypdbp.TooLong):
        pair.a.send_command(pair.to_b, 1, bytes(pair.a.longest + 1))
    with pytest.raises(OverflowError):
        pair.a.send_command(pair.to_b, 65_536)


def test_a_message_to_several(pair):
    with pair.cluster.nodes[1].register("c") as c:
        pair.a.send_all([pair.to_b, c.id], b"to both")
        pair.a.flush()
        assert {part.recv(SOON).tobytes() for part in (pair.b, c)} == {b"to both"}


@pytest.mark.parametrize("count", [1, 7, 50_000])
def test_rows_are_messages_and_batches_have_them_together(pair, count):
    table = array.array("I", range(2 * count))
    sender = Thread(pair.a.send_rows, pair.to_b, memoryview(table).cast("B").cast("I", (count, 2)))
    got = array.array("I")
    while len(got) < 2 * count:
        with pair.b.recv_batch(SOON) as batch:
            assert (batch.message_len, batch.source) == (8, pair.to_a)
            assert bytes(batch[0]) + bytes(batch[-1]) == batch.tobytes()[:8] + batch.tobytes()[-8:]
            assert len(list(batch)) == len(batch) and len(batch) * 8 == len(batch.tobytes())
            with pytest.raises(IndexError):
                batch[len(batch)]
            got.frombytes(batch)
    assert got == table and sender.join() == count


def test_batches_are_what_has_come(pair):
    assert list(pair.b.batches()) == []
    assert pair.a.send_rows(pair.to_b, array.array("Q", range(10))) == 10
    pair.a.send(pair.to_b, b"of another length")
    pair.a.flush()
    pair.cluster.node.quiesce(SOON)
    batches = [(len(batch), batch.message_len) for batch in pair.b.batches()]
    assert batches[-1] == (1, 17) and {length for _, length in batches[:-1]} == {8}
    assert sum(count for count, _ in batches[:-1]) == 10
    assert list(pair.b.batches(timeout=0.01)) == []


def test_rows_without_bytes(pair):
    assert pair.a.send_rows(pair.to_b, b"") == 0


def test_room_runs_out_and_comes_back(pair):
    sent = 0
    with pytest.raises(pypdbp.NoRoom) as raised:
        while True:
            pair.a.send(pair.to_b, b"x" * 1000, timeout=0)
            sent += 1
    assert isinstance(raised.value, BlockingIOError)
    with pytest.raises(pypdbp.Timeout) as raised:
        while True:
            pair.a.send(pair.to_b, b"x" * 1000, timeout=0.01)
            sent += 1
    assert isinstance(raised.value, TimeoutError) and raised.value.nodes == [1]
    assert "(`wait`, `write_or`)" in str(raised.value)
    assert pair.a.send_rows(pair.to_b, bytes(10), timeout=0) in range(11)
    drained = Thread(lambda: [pair.b.recv(SOON).release() for _ in range(sent // 2)])
    pair.a.send(pair.to_b, b"there is room again")
    drained.join()


def test_no_message_is_a_timeout(pair):
    for timeout in 0, 0.01:
        with pytest.raises(pypdbp.Timeout):
            pair.b.recv(timeout)
        with pytest.raises(pypdbp.Timeout):
            pair.b.recv_batch(timeout)
    assert pair.b.try_recv() is None
    for timeout in -1, float("nan"):
        with pytest.raises(ValueError, match="timeout"):
            pair.b.recv(timeout)


def test_ready_says_what_there_is(pair):
    ready = pair.a.wait(pair.to_b, timeout=SOON)
    assert (bool(ready), ready.send, ready.recv, ready.stream) == (True, True, False, False)
    with pytest.raises(ValueError):
        pair.a.wait(recv=False)
    with pytest.raises(pypdbp.Timeout):
        pair.a.wait(timeout=0.01)


def test_targets_can_be_sent_compared_and_hashed(pair):
    pair.a.send(pair.to_b, int(pair.to_a).to_bytes(8, "little"))
    told = pypdbp.Target.from_bits(int.from_bytes(pair.b.recv(SOON).tobytes(), "little"))
    assert told == pair.to_a == pair.a.id and hash(told) == hash(pair.to_a) and told != pair.to_b and told.node == 0
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps({told: [told]}, protocol)) == {told: [told]}
    assert copy.deepcopy(told) == copy.copy(told) == told and "@node0" in repr(told)
    pair.b.send(told, b"back")
    assert bytes(pair.a.recv(SOON)) == b"back"
    with pytest.raises(ValueError):
        pypdbp.Target.from_bits(2**64 - 1)
    with pytest.raises(TypeError):
        pair.a.send(int(pair.to_b), b"")


def test_objects_of_one_node_are_equal(pair):
    first, second = pair.cluster.nodes
    assert pair.cluster.node == first == pair.a.node != second and first != "node0"
    assert {first: 1, second: 2}[pair.b.node] == 2


def test_handles_are_neither_copied_nor_pickled(pair):
    for handle in pair.a, pair.cluster:
        with pytest.raises(TypeError):
            pickle.dumps(handle)
    with pytest.raises(TypeError):
        copy.copy(pair.a)


def test_addresses_that_nobody_has(pair):
    with pytest.raises(pypdbp.NotFound, match="nobody") as raised:
        pair.a.find("nobody@node1", 0)
    assert isinstance(raised.value, LookupError)
    with pytest.raises(pypdbp.RegisterError, match="a"):
        pair.cluster.nodes[0].register("a")
    assert sorted(pair.cluster.node.parts()) == ["a@node0", "b@node1"]
