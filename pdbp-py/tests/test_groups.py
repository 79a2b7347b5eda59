"""Groups: each member is a node with a thread of its own."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from array import array

import pypdbp
import pytest
from conftest import Thread


def together(nodes, *members):
    """Runs `members(node)` of each node on a thread of its own; returns what they return."""
    results, errors = [None] * len(nodes), []

    def run(index):
        try:
            results[index] = members[index % len(members)](nodes[index])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(nodes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


@pytest.fixture(params=[2, 3])
def nodes(request):
    with pypdbp.start(nodes=request.param, transport="local") as cluster:
        yield cluster.nodes


def test_each_call_does_what_it_says(nodes):
    def member(node):
        with node.group("all", timeout=60) as group:
            rank, size = group.rank, group.size
            assert (rank, size) == (node.index, len(nodes))
            assert repr(group) == f"<pypdbp.Group: member {rank} of {size}>"
            group.barrier()

            data = array("q", [rank, 7])
            group.broadcast(data, root=1)
            assert data.tolist() == [1, 7]

            own, every = array("i", [rank, -rank]), array("i", [0] * 2 * size)
            group.all_gather(own, every)
            assert every.tolist() == [value for r in range(size) for value in (r, -r)]
            collected = array("i", [0] * 2 * size) if rank == 1 else None
            group.gather(own, collected, root=1)
            assert collected is None or collected == every
            group.scatter(every if rank == 0 else None, own)
            assert own.tolist() == [rank, -rank]
            give, get = array("H", [10 * rank + r for r in range(size)]), array("H", [0] * size)
            group.all_to_all(give, get)
            assert get.tolist() == [10 * r + rank for r in range(size)]

            for code in "bhilqBHILQfd":
                values = array(code, [rank, 2, 3])
                group.all_reduce(values)
                assert values.tolist() == [sum(range(size)), 2 * size, 3 * size], code
            values = array("d", [rank, -rank])
            group.reduce(values, op="max", root=1)
            assert rank != 1 or values.tolist() == [size - 1, 0]
            values = array("B", [1 << rank])
            group.all_reduce(values, op="or")
            assert values[0] == (1 << size) - 1
            values = array("f", range(10))
            share = group.reduce_scatter(values, op="product")
            assert values[share].tolist() == [float(i**size) for i in range(10)[share]]
            assert len(values[share]) in (10 // size, 10 // size + 1)

            left, right = (rank - 1) % size, (rank + 1) % size
            into = bytearray(4)
            group.send_recv(right, rank.to_bytes(4, "big"), left, into, tag=5)
            assert int.from_bytes(into, "big") == left
            if rank == 0:
                group.send(1, b"tagged", tag=9)
            if rank == 1:
                into = bytearray(6)
                group.recv(0, into, tag=9)
                assert into == b"tagged"
            group.barrier()
        assert repr(group).endswith("(closed)>")
        with pytest.raises(pypdbp.Closed, match="group"):
            group.barrier()

    together(nodes, member)


def test_groups_are_split_and_made_of_parts(nodes):
    def member(node):
        with node.group("all", timeout=60) as group:
            with group.split(node.index % 2) as half:
                assert half.size == len(range(node.index % 2, len(nodes), 2))
                half.barrier()
            with group.local() as local:
                assert (local.rank, local.size) == (group.rank, group.size)
            # The last of the list comes first.
            with node.register("worker") as part:
                list_of_parts = [f"worker@{name}" for name in reversed([node.name for node in nodes])]
                with part.group("parts", list_of_parts, timeout=60) as parts:
                    assert parts.rank == len(nodes) - 1 - node.index
                    parts.set_patience(60)
                    values = array("q", [1])
                    parts.all_reduce(values)
                    assert values[0] == len(nodes)
                    parts.barrier()

    together(nodes, member)


def test_setting_the_patience_makes_no_other_thread_busy():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with pypdbp.start(nodes=1, transport="local").node.group("alone", timeout=60) as group:
            threads = [Thread(lambda: [group.set_patience(30) for _ in range(3000)]) for _ in range(2)]
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)


def test_what_cannot_be_is_refused_and_the_group_goes_on(nodes):
    def member(node):
        with node.group("all", timeout=60) as group:
            values = array("d", [1.0] * 4)
            for wrong, error, text in [
                (lambda: group.broadcast(values, root=99), pypdbp.GroupArgumentError, "99"),
                (lambda: group.all_gather(values, array("d", [0.0])), ValueError, "bytes"),
                (lambda: group.all_gather(values, values), ValueError, "share memory"),
                (lambda: group.all_reduce(values, op="and"), ValueError, "integers"),
                (lambda: group.all_reduce(values, op="mean"), ValueError, "mean"),
                (lambda: group.all_reduce(b"bytes"), BufferError, None),
                (lambda: group.all_reduce(memoryview(bytearray(8)).cast("c")), TypeError, "'c'"),
                (lambda: group.all_reduce(object()), TypeError, "bytes-like"),
                (lambda: group.set_patience(-1), ValueError, "seconds"),
                (lambda: group.set_patience(0), ValueError, "above 0"),
            ]:
                with pytest.raises(error, match=text):
                    wrong()
            group.all_reduce(values)
            assert values[0] == len(nodes)
            group.barrier()
        with pytest.raises(pypdbp.NotFound), node.register("lone") as part:
            part.group("none", ["lone@" + node.name, "nobody@node0"], timeout=0.05)

    together(nodes, member)


def test_calls_that_differ_end_the_group(nodes):
    def member(node):
        group = node.group("all", timeout=60)
        with pytest.raises(pypdbp.GroupError, match="call"):
            for _ in range(3):
                group.all_reduce(array("q", [1]), op="max" if node.index == 0 else "min")
        with pytest.raises(pypdbp.PdbpError):
            group.barrier()
        # A member that left now would be gone to another that comes late.
        node.barrier(60)
        group.close()

    together(nodes, member)


def test_a_member_that_leaves_is_named_to_the_others(nodes):
    def leaves(node):
        node.group("all", timeout=60).close()

    def stays(node):
        with node.group("all", timeout=60) as group, pytest.raises(pypdbp.PeerFailed, match="all#0"):
            group.barrier()

    together(nodes, leaves, stays, stays)


def test_one_thread_at_a_time_and_the_end_of_the_cluster_ends_calls():
    cluster = pypdbp.start(nodes=2, transport="local")
    groups = together(cluster.nodes, lambda node: node.group("all", timeout=60))
    raised = []

    def wait():
        while not raised:
            try:
                groups[0].barrier()
            except pypdbp.Busy:
                pass  # this time the other thread was in a call
            except pypdbp.PdbpError as error:
                raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while True:
        try:
            groups[0].set_patience(60)
        except pypdbp.Busy:
            break
        time.sleep(0.01)  # the other thread gets in
    cluster.close()
    thread.join()
    assert isinstance(raised[0], pypdbp.Closed)
    with pytest.raises(pypdbp.Closed, match="cluster"):
        groups[1].barrier()


def test_arrays_of_numpy():
    numpy = pytest.importorskip("numpy")
    with pypdbp.start(nodes=2, transport="local") as cluster:

        def member(node):
            with node.group("all", timeout=60) as group:
                gradient = numpy.full((300, 400), node.index + 1, dtype="f4")
                group.all_reduce(gradient)
                assert (gradient == 3).all()
                every = numpy.zeros((2, 5), dtype="i8")
                group.all_gather(numpy.arange(5) + node.index, every)
                assert (every == [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]).all()
                # Scalars, and what has no bytes in a row.
                one = numpy.array(node.index + 0.5)
                group.all_reduce(one, op="min")
                assert one == 0.5
                for wrong in (numpy.zeros(4, ">f8"), numpy.zeros(4, "f2"), numpy.zeros(4, "?")):
                    with pytest.raises(TypeError, match="format"):
                        group.all_reduce(wrong)
                with pytest.raises(BufferError):
                    group.all_reduce(numpy.zeros((4, 4))[:, 1])
                group.barrier()

        together(cluster.nodes, member)


def run_program(program):
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout


def test_the_end_of_the_program_ends_a_call_of_another_thread():
    said = run_program("""
        import threading, pypdbp
        cluster = pypdbp.start(nodes=2, transport="local")
        groups = [None, None]
        def member(node):
            try:
                groups[node.index] = group = node.group("all", timeout=60)
                if node.index == 0:
                    group.barrier()  # which the other never calls
            except pypdbp.PdbpError:
                pass  # closed, unless the interpreter ends first
        threads = [threading.Thread(target=member, args=(node,), daemon=True) for node in cluster.nodes]
        for thread in threads:
            thread.start()
        threads[1].join()
        print("the end")
        """)
    assert said == "the end\n"


def test_ctrl_c_ends_a_call_and_with_it_the_group():
    said = run_program("""
        import os, signal, threading, time, pypdbp
        cluster = pypdbp.start(nodes=2, transport="local")
        groups = [None, None]
        def member(node):
            groups[node.index] = node.group("all", timeout=60)
        other = threading.Thread(target=member, args=(cluster.nodes[1],))
        other.start()
        member(cluster.nodes[0])
        other.join()
        def interrupt():
            while True:
                try:
                    groups[0].set_patience(60)
                except pypdbp.Busy:
                    break  # the main thread is in its call
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        interrupted = False
        while not interrupted:
            try:
                groups[0].barrier()
            except pypdbp.Busy:
                pass  # this time the other thread was in a call
            except KeyboardInterrupt:
                interrupted = True
        print("interrupted")
        try:
            groups[0].barrier()
        except pypdbp.GroupError as error:
            print(error)
        """)
    assert said.startswith("interrupted\n") and "given up" in said


def test_a_group_in_which_a_call_has_panicked_can_only_be_closed(capfd):
    with pypdbp.start(nodes=1, transport="local") as cluster, cluster.node.group("all") as group:
        if not hasattr(group, "_panic"):
            pytest.skip("not a debug build")
        with pytest.raises(pypdbp.Panic, match="on purpose"):
            group._panic()
        with pytest.raises(pypdbp.Panic, match="earlier call"):
            group.barrier()
    assert "on purpose" in capfd.readouterr().err


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_group_is_not_for_forked_children():
    said = run_program("""
        import os, sys, warnings, pypdbp
        warnings.simplefilter("ignore")
        with pypdbp.start(nodes=1, transport="local") as cluster, cluster.node.group("all") as group:
            if os.fork() == 0:
                try:
                    group.barrier()
                except pypdbp.Forked:
                    os._exit(7)
                os._exit(1)
            print(os.waitstatus_to_exitcode(os.wait()[1]))
            group.barrier()
            print("goes on")
        """)
    assert said == "7\ngoes on\n"
