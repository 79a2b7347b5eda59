"""Waiting: the GIL, Ctrl-C, interrupts, several threads, the end of a cluster."""

import contextlib
import signal
import threading
import time

import pypdbp
import pytest
from conftest import SOON, Thread, cause_event, interrupt_when_in_call, is_in_call


@pytest.fixture
def on_interrupt():
    """Sets a handler of SIGINT for the test."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    "wait",
    [
        lambda pair: pair.b.recv(),
        lambda pair: pair.b.recv(SOON),
        lambda pair: pair.b.recv_batch(),
        lambda pair: next(pair.b.batches(timeout=None)),
        lambda pair: pair.b.accept(SOON),
        lambda pair: pair.b.recv_array(timeout=SOON),
        lambda pair: pair.b.wait(timeout=SOON),
    ],
)
def test_ctrl_c_ends_a_call_that_waits(pair, wait):
    interrupting = interrupt_when_in_call(pair.b)
    with pytest.raises(KeyboardInterrupt):
        wait(pair)
    interrupting.join()
    pair.a.send(pair.to_b, b"all is well")
    assert bytes(pair.b.recv(SOON)) == b"all is well"


def test_ctrl_c_ends_a_send_that_waits_for_room(pair):
    with pytest.raises(pypdbp.NoRoom):
        while True:
            pair.a.send(pair.to_b, bytes(1000), timeout=0)
    interrupting = interrupt_when_in_call(pair.a)
    with pytest.raises(KeyboardInterrupt):
        while True:
            pair.a.send(pair.to_b, bytes(1000))
    interrupting.join()


def test_ctrl_c_as_a_stream_arrives_gives_the_stream_up(pair, on_interrupt):
    writers = []

    def handler(*_):
        writers.append(pair.a.open(pair.to_b))
        writers[0].write(b"a stream")
        writers[0].flush()
        raise KeyboardInterrupt

    on_interrupt(handler)
    interrupting = interrupt_when_in_call(pair.b)
    with pytest.raises(KeyboardInterrupt):
        pair.b.accept(SOON)
    interrupting.join()
    # More than there is room for: somebody discards it, or accepts it, if the call has ended without it.
    writing = Thread(writers[0].write, bytes(8 << 20))
    while writing.is_alive():
        with contextlib.suppress(pypdbp.Timeout):
            pair.b.accept(0.01).close()
    writing.join()
    writers[0].close()


@pytest.mark.parametrize("receive", [lambda part: part.recv(SOON), lambda part: part.recv_batch(SOON)])
def test_ctrl_c_as_a_message_arrives_leaves_it_for_the_next_call(pair, on_interrupt, receive):
    def handler(*_):
        pair.a.send(pair.to_b, b"a message")
        pair.cluster.nodes[0].quiesce(SOON)
        raise KeyboardInterrupt

    on_interrupt(handler)
    interrupting = interrupt_when_in_call(pair.b)
    with pytest.raises(KeyboardInterrupt):
        receive(pair.b)
    interrupting.join()
    with receive(pair.b) as message:
        assert bytes(message) == b"a message"


def read_one(part):
    reader, room = part.accept(SOON), bytearray(9)
    return lambda: bytes(room[: reader.readinto(room)])


def read_any(part):
    streams = part.streams()
    return lambda: streams.next(SOON).tobytes()


@pytest.mark.parametrize("begin", [read_one, read_any])
def test_ctrl_c_as_a_segment_arrives_leaves_it_for_the_next_call(pair, on_interrupt, begin):
    writer = pair.a.open(pair.to_b)

    def write():
        writer.write(b"a segment")
        writer.flush()
        pair.cluster.nodes[0].quiesce(SOON)

    def handler(*_):
        write()
        raise KeyboardInterrupt

    write()
    receive = begin(pair.b)
    assert receive() == b"a segment"
    on_interrupt(handler)
    interrupting = interrupt_when_in_call(pair.b)
    with pytest.raises(KeyboardInterrupt):
        receive()
    interrupting.join()
    assert receive() == b"a segment"


def test_ctrl_c_in_a_superstep_ends_one_call(pair, on_interrupt):
    main, raised = threading.main_thread().ident, []

    def handler(*_):
        # Between two calls, or afterwards, it does nothing.
        if not raised and is_in_call(pair.a):
            raised.append(True)
            raise KeyboardInterrupt

    def interrupt():
        while not raised:
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.001)

    on_interrupt(handler)
    interrupting = Thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        # The other node is not done.
        while pair.a.advance(True):
            pass
    interrupting.join()
    assert pair.a.advance(True)


def test_ctrl_c_as_a_loan_gets_room_gives_it_back(pair, on_interrupt):
    def handler(*_):
        while pair.b.try_recv() is not None:
            pass
        raise KeyboardInterrupt

    with pytest.raises(pypdbp.NoRoom):
        while True:
            pair.a.send(pair.to_b, bytes(1000), timeout=0)
    on_interrupt(handler)
    interrupting = interrupt_when_in_call(pair.a)
    with pytest.raises(KeyboardInterrupt):
        while True:
            pair.a.loan(pair.to_b, 1000).send()
    interrupting.join()
    pair.a.loan(pair.to_b, 1000).cancel()


def test_ctrl_c_ends_a_start_that_waits_for_other_processes():
    main = threading.main_thread().ident
    # Whenever the signal comes, nobody waits for a day.
    with pytest.raises(KeyboardInterrupt):
        Thread(signal.pthread_kill, main, signal.SIGINT)
        pypdbp.start(nodes=2, listen="127.0.0.1:0", timeout_ms=86_400_000)


def test_ctrl_c_ends_a_wait_for_an_event(cluster):
    main, watch, begun = threading.main_thread().ident, cluster.node.watch(), threading.Event()

    def interrupt():
        # That this thread runs shows that the GIL is free. Whenever the signal comes, nobody waits for a minute.
        begun.wait()
        time.sleep(0.2)
        signal.pthread_kill(main, signal.SIGINT)

    interrupting = Thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        begun.set()
        while True:
            watch.next(SOON)
    interrupting.join()


def test_a_handler_that_raises_nothing_lets_the_call_go_on(pair, on_interrupt):
    handled, in_call = threading.Event(), []

    def handler(*_):
        with pytest.raises(pypdbp.Busy):
            pair.b.try_recv()
        pair.a.send(pair.to_b, b"from the handler")
        handled.set()

    on_interrupt(handler)
    interrupting = interrupt_when_in_call(pair.b, then=lambda: in_call.append(handled.wait(SOON)))
    assert bytes(pair.b.recv(SOON)) == b"from the handler"
    interrupting.join()
    assert in_call == [True]


def test_a_handler_may_close_the_cluster(pair, on_interrupt):
    on_interrupt(lambda *_: pair.cluster.close())
    interrupting = interrupt_when_in_call(pair.b)
    with pytest.raises(pypdbp.Closed):
        pair.b.recv(SOON)
    interrupting.join()


def test_other_threads_run_while_one_waits_and_get_busy(pair):
    receiving = Thread(pair.b.recv)
    while not is_in_call(pair.b):
        pass
    for call in pair.b.try_recv, pair.b.close, lambda: pair.b.send(pair.to_a, b""), lambda: pair.b.loan(pair.to_a, 1):
        with pytest.raises(pypdbp.Busy, match="one thread at a time"):
            call()
    pair.a.send(pair.to_b, b"end")
    pair.a.flush()
    assert bytes(receiving.join()) == b"end"


def test_a_part_and_its_messages_go_from_thread_to_thread(pair):
    pair.a.send(pair.to_b, b"one")
    message = Thread(pair.b.recv, SOON).join()
    Thread(message.release).join()
    assert pair.b.messages_held == 0


def test_interrupt_ends_one_call(pair):
    receiving = Thread(pair.b.recv)
    pair.cluster.nodes[1].interrupt()
    with pytest.raises(pypdbp.Interrupted):
        receiving.join()
    pair.a.send(pair.to_b, b"go on")
    assert bytes(pair.b.recv(SOON)) == b"go on"


def test_the_end_of_the_cluster_ends_calls_that_wait():
    with pypdbp.start(nodes=2, transport="local") as cluster:
        parts = [node.register("part") for node in cluster.nodes]
        waiting = [Thread(part.recv) for part in parts] + [Thread(cluster.nodes[0].barrier, SOON)]
        while not all(map(is_in_call, parts)):
            pass
    for thread in waiting:
        with pytest.raises(pypdbp.Closed):
            thread.join()
    cluster.close()
    for call in cluster.node.barrier, cluster.node.stats, lambda: cluster.node.register("x"), lambda: parts[0].find("x"):
        with pytest.raises(pypdbp.Closed):
            call()


def test_an_event_ends_the_wait_of_a_thread(pair):
    watch = pair.b.node.watch()

    def lost():
        while (event := watch.next(SOON)).kind != "unroutable":
            pass
        return event.messages

    waiting = Thread(lost)
    cause_event(pair)
    assert waiting.join() == 1
    with pytest.raises(pypdbp.Timeout, match="no node has caused an event"):
        while True:
            watch.next(0.05)


def test_the_end_of_the_cluster_ends_a_wait_for_an_event(cluster):
    watch = cluster.node.watch()

    def wait():
        while True:
            watch.next(SOON)

    waiting = Thread(wait)
    time.sleep(0.05)
    cluster.close()
    with pytest.raises(pypdbp.Closed):
        waiting.join()


def test_a_part_that_is_closed_frees_its_name(pair):
    node = pair.cluster.nodes[0]
    with node.register("name") as part:
        assert not part.closed
    assert part.closed
    part.close()
    with pytest.raises(pypdbp.Closed):
        part.send(pair.to_b, b"")
    node.register("name").close()
    # Dropped is as good as closed.
    node.register("name")
    node.register("name").close()


def test_a_cluster_lives_as_long_as_its_parts():
    part = pypdbp.start(nodes=1, transport="local").node.register("part")
    part.send(part.id, b"to myself")
    assert bytes(part.recv(SOON)) == b"to myself"


def test_barrier_and_quiesce(pair):
    with pytest.raises(pypdbp.Timeout) as raised:
        pair.cluster.nodes[0].barrier(timeout=0.01)
    assert raised.value.nodes == [1]
    # That was its arrival.
    pair.cluster.nodes[1].barrier(SOON)
    pair.a.send(pair.to_b, b"here")
    pair.cluster.node.quiesce(SOON)
    assert bytes(pair.b.try_recv()) == b"here"


def test_supersteps_end_everywhere(cluster):
    def program(node):
        part = node.register("worker")
        workers = [part.find(f"worker@node{i}", SOON) for i in range(2)]
        sent, counts = 0, 0
        while part.advance(sent == 1000):
            while sent < 1000:
                try:
                    part.send(workers[sent % 2], sent.to_bytes(4, "little"), timeout=0)
                except pypdbp.NoRoom:
                    break
                sent += 1
            counts += sum(len(batch) for batch in part.batches())
        return counts, part

    threads = [Thread(program, node) for node in cluster.nodes]
    assert [thread.join()[0] for thread in threads] == [1000, 1000]


def test_a_panic_is_an_exception_of_one_part(pair, capfd):
    if not hasattr(pair.a, "_panic"):
        pytest.skip("not a debug build")
    with pytest.raises(pypdbp.Panic, match="on purpose"):
        pair.a._panic()
    with pytest.raises(pypdbp.Panic):
        pair.a.send(pair.to_b, b"")
    pair.a.close()
    with pair.cluster.nodes[0].register("next") as part:
        part.send(pair.to_b, b"others go on")
    assert bytes(pair.b.recv(SOON)) == b"others go on"
    assert "on purpose" in capfd.readouterr().err


def test_a_barrier_that_is_interrupted_counts_and_says_so(cluster):
    first, second = cluster.nodes
    first.interrupt()
    with pytest.raises(pypdbp.Interrupted, match="except a barrier"):
        first.barrier(SOON)
    second.barrier(SOON)
