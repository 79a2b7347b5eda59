"""Bytes in place: views of messages and of loans, and what holds a block."""

import gc
import sys

import pypdbp
import pytest
from conftest import SOON, Thread, is_in_call


def test_a_view_is_read_only_and_keeps_the_message(pair):
    pair.a.send(pair.to_b, b"in place")
    message = pair.b.recv(SOON)
    view = memoryview(message)
    assert view.readonly and pair.b.messages_held == 1
    with pytest.raises(TypeError):
        view[0] = 0
    with pytest.raises(BufferError, match="view"):
        message.release()
    del message
    assert bytes(view) == b"in place" and pair.b.messages_held == 1
    view.release()
    del view
    gc.collect()
    assert pair.b.messages_held == 0


def test_the_end_of_with_wants_all_views_gone(pair):
    pair.a.send(pair.to_b, b"kept")
    with pytest.raises(BufferError):
        with pair.b.recv(SOON) as message:
            view = memoryview(message)
    assert not message.released and bytes(view) == b"kept"
    view.release()
    message.release()
    message.release()
    assert message.released and pair.b.messages_held == 0


def test_an_exception_in_with_is_not_replaced_by_one_about_views(pair):
    pair.a.send(pair.to_b, b"kept")
    with pytest.raises(KeyError):
        with pair.b.recv(SOON) as message:
            view = memoryview(message)
            raise KeyError
    assert bytes(view) == b"kept"


def test_a_view_of_one_of_a_batch_keeps_no_memory(pair):
    pair.a.send(pair.to_b, bytes(1000))
    with pair.b.recv_batch(SOON) as batch:
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(1000):
            assert len(batch[0]) == 1000
        assert sys.getallocatedblocks() - before < 500


def test_held_messages_are_counted(pair):
    for _ in range(5):
        pair.a.send(pair.to_b, b"held")
    held = [pair.b.recv(SOON) for _ in range(5)]
    assert pair.cluster.nodes[1].stats()["messages_held"] == pair.b.messages_held == 5
    held.clear()
    assert pair.b.messages_held == 0


def test_held_messages_hold_the_credit_of_their_sender(pair):
    pair.a.send(pair.to_b, b"the first")
    held = [pair.b.recv(SOON)]
    with pytest.raises(pypdbp.NoRoom):
        while True:
            pair.a.send(pair.to_b, bytes(1000), timeout=0)
            while (message := pair.b.try_recv()) is not None:
                held.append(message)
    assert pair.b.messages_held == len(held)
    held.clear()
    pair.a.send(pair.to_b, b"there is room again", timeout=SOON)


def test_a_message_outlives_its_cluster():
    with pypdbp.start(nodes=2, transport="local") as cluster:
        a, b = (node.register("part") for node in cluster.nodes)
        a.send(a.find("part@node1", SOON), b"still here")
        message = b.recv(SOON)
    assert bytes(message) == b"still here"
    with pytest.raises(pypdbp.Closed):
        b.recv(0)


def test_a_loan_is_filled_in_place(pair):
    with pair.a.loan(pair.to_b, 8) as room:
        assert len(room) == 8
        memoryview(room)[:] = b"in place"
    assert bytes(pair.b.recv(SOON)) == b"in place"
    with pytest.raises(pypdbp.Closed):
        room.send()


def test_a_loan_that_somebody_views_is_given_up(pair):
    with pytest.raises(BufferError, match="given up"):
        with pair.a.loan(pair.to_b, 8) as room:
            view = memoryview(room)
    # It may still write there, so nobody else may.
    view[:] = b"too late"
    with pytest.raises(pypdbp.Busy):
        pair.a.send(pair.to_b, b"not yet")
    with pytest.raises(pypdbp.Closed):
        memoryview(room)
    with pytest.raises(pypdbp.Busy):
        pair.a.close()
    view.release()
    pair.a.send(pair.to_b, b"now")
    assert bytes(pair.b.recv(SOON)) == b"now"


def test_an_exception_gives_a_loan_up(pair):
    with pytest.raises(KeyError):
        with pair.a.loan(pair.to_b, 8) as room:
            memoryview(room)[:] = b"rejected"
            raise KeyError
    with pair.a.loan(pair.to_b, 4) as room:
        room.cancel()
    loan = pair.a.loan(pair.to_b, 4)
    with pytest.raises(pypdbp.Busy):
        pair.a.loan(pair.to_b, 4)
    del loan
    pair.a.send(pair.to_b, b"the only one")
    assert bytes(pair.b.recv(SOON)) == b"the only one"


def test_a_loan_that_finds_another_thread_in_its_part_can_be_sent_later(pair):
    room = pair.a.loan(pair.to_b, 4)
    memoryview(room)[:] = b"late"
    receiving = Thread(pair.a.recv)
    while not is_in_call(pair.a):
        pass
    with pytest.raises(pypdbp.Busy):
        room.send()
    pair.b.send(pair.to_a, b"end")
    pair.b.flush()
    receiving.join().release()
    room.send()
    assert bytes(pair.b.recv(SOON)) == b"late"
    pair.a.loan(pair.to_b, 4).cancel()


def test_a_loan_has_to_fit_a_block(pair):
    with pytest.raises(pypdbp.TooLong):
        pair.a.loan(pair.to_b, pair.a.longest + 1)


def test_a_view_of_a_loan_outlives_the_cluster():
    with pypdbp.start(nodes=2, transport="local") as cluster:
        a, b = (node.register("part") for node in cluster.nodes)
        room = a.loan(a.find("part@node1", SOON), 8)
        view = memoryview(room)
    view[:] = b"own room"
    assert bytes(view) == b"own room"
    view.release()
    with pytest.raises(pypdbp.Closed):
        room.send()


def test_threads_that_use_a_released_message_are_told_so(pair):
    pair.a.send(pair.to_b, b"")
    message = pair.b.recv(SOON)
    message.release()

    def use(*calls):
        for call in calls * 2000:
            with pytest.raises(pypdbp.Closed):
                call()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        views = [lambda: memoryview(message)], [lambda: len(message), lambda: message.source]
        for thread in [Thread(use, *calls) for calls in views * 2]:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
