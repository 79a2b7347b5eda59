"""Processes: clusters over sockets, forks, the end of the interpreter, settings."""

import contextlib
import ctypes
import glob
import os
import select
import shutil
import signal
import subprocess
import sys
import time

import pypdbp
import pytest
from conftest import SOON, free_address, output, python

PING_PONG = """
import sys, pypdbp
with pypdbp.start(timeout_ms=60_000, lease_ms=0) as cluster:
    node = cluster.node
    lines = ""
    part = node.register("worker")
    peer = part.find(f"worker@node{1 - node.index}", timeout=60)
    if node.index == 0:
        for size in 0, 1, 100_000:
            part.send(peer, bytes(size))
            with part.recv(timeout=60) as message:
                assert bytes(message) == bytes(size) and message.source == peer
        with part.open(peer) as writer:
            writer.write(b"a stream")
    else:
        for _ in range(3):
            with part.recv(timeout=60) as message:
                part.send(message.source, message)
        with part.accept(timeout=60) as reader:
            lines = reader.read().decode() + "\\n"
    node.quiesce(60)
    node.barrier(60)
    # In one piece: a launcher mixes what its processes write.
    sys.stdout.write(f"{lines}node {node.index} of {cluster.size}\\n")
"""

# The other rank does not look at the cluster any more, nor does it end.
FAILING = """
import signal, pypdbp
cluster = pypdbp.start()
cluster.node.barrier(60)
if cluster.node.index == 1:
    print("before the end")
    raise {}
while True:
    signal.pause()
"""


def test_two_processes_over_sockets():
    address = free_address()
    processes = python(PING_PONG, PDBP_LISTEN=address), python(PING_PONG, PDBP_JOIN=address)
    assert [output(process) for process in processes] == ["node 0 of 2\n", "a stream\nnode 1 of 2\n"]


LEAVING = """
import pypdbp
with pypdbp.start(timeout_ms=60_000, lease_ms=0) as cluster:
    part = cluster.node.register("leaves")
    part.send(part.find("stays@node0", timeout=60), b"the last")
    part.flush()
    cluster.node.quiesce(60)
"""


def test_a_loop_that_never_waits_learns_that_nobody_is_left():
    address = free_address()
    leaving = python(LEAVING, PDBP_JOIN=address)
    with pypdbp.start(nodes=2, listen=address, timeout_ms=60_000, lease_ms=0) as cluster:
        part, received = cluster.node.register("stays"), []
        for receive in part.recv, part.recv_batch:
            with pytest.raises(pypdbp.PeerFailed) as raised:
                until = time.monotonic() + SOON
                while time.monotonic() < until:
                    with contextlib.suppress(pypdbp.Timeout):
                        received.append(bytes(receive(timeout=0)))
            assert raised.value.nodes == []
        assert received == [b"the last"]
    output(leaving)


def mpirun(names: tuple[str, ...], ranks: int, code: str, *args: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs a job of a launcher, whose MPI the module has to find by itself."""
    launcher = next(filter(None, map(shutil.which, names)), None)
    if launcher is None:
        pytest.skip(f"there is no {names[0]}")
    flags = [] if "mpich" in names[0] else ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [launcher, "-n", str(ranks), *flags, sys.executable, "-X", "faulthandler", "-c", code, *args]
    # The launcher of MPICH is killed by SIGPIPE now and then, if its ranks end while it writes to them.
    for _ in range(3):
        ended = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=2 * SOON)
        if ended.returncode != -signal.SIGPIPE:
            break
    return ended


needs_mpi = pytest.mark.skipif(not pypdbp.HAS_MPI, reason="the module was built without MPI")
# The same module runs with either.
both_mpis = pytest.mark.parametrize("names", [("mpirun.openmpi", "mpirun"), ("mpiexec.mpich", "mpiexec.hydra")])


@needs_mpi
@both_mpis
def test_two_ranks_of_a_job(names):
    ended = mpirun(names, 2, PING_PONG)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.split("\n")) == ["", "a stream", "node 0 of 2", "node 1 of 2"]


# Half of the job each: a cluster on a communicator that the program has split off, while its own calls go on.
ON_COMMUNICATORS = """
import sys, pypdbp
from mpi4py import MPI
world = MPI.COMM_WORLD
half = world.Split(world.rank % 2)
with pypdbp.start(comm=half) as cluster:
    node = cluster.node
    assert (cluster.size, node.index) == (half.size, half.rank) == (2, world.rank // 2)
    part = node.register("worker")
    peer = part.find(f"worker@node{1 - node.index}", timeout=60)
    part.send(peer, world.rank.to_bytes(4, "little"))
    with part.recv(timeout=60) as message:
        got = int.from_bytes(message, "little")
    assert world.allreduce(got) == 6
    node.barrier(60)
half.Free()
try:
    pypdbp.start(comm=MPI.COMM_NULL)
except pypdbp.StartError as error:
    assert "is not a communicator of" in str(error), error
else:
    raise AssertionError("null is no communicator")
sys.stdout.write(f"{world.rank} got {got}\\n")
"""


@needs_mpi
@both_mpis
def test_clusters_on_communicators_of_mpi4py(names, tmp_path):
    pytest.importorskip("mpi4py")
    environment = {"MPI4PY_MPIABI": "openmpi"}
    if "mpich" in names[0]:
        # The wheels of mpi4py know the library by the name that it has everywhere but in Debian.
        environment = {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(tmp_path)}
        for library in glob.glob("/usr/lib/*/libmpich.so.12"):
            (tmp_path / "libmpi.so.12").symlink_to(library)
    ended = mpirun(names, 4, ON_COMMUNICATORS, **environment)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.split("\n")) == ["", "0 got 2", "1 got 3", "2 got 0", "3 got 1"]


def test_only_communicators_of_mpi4py_are_taken():
    with pytest.raises(TypeError, match="communicator of mpi4py.*not 'world'"):
        pypdbp.start(comm="world")


NO_MPI_IS_LOADED = """
import pypdbp
def loaded():
    return [line.split()[-1] for line in open("/proc/self/maps") if "libmpi" in line]
with pypdbp.start(nodes=2, transport="local"):
    assert not loaded(), loaded()
for library in "/nowhere/libmpi.so", "/dev/null":
    try:
        pypdbp.start(transport="mpi", mpi=library)
    except pypdbp.StartError as error:
        assert library in str(error) and "PDBP_MPI" in str(error), error
    else:
        raise AssertionError(f"{library} is no MPI")
assert not loaded(), loaded()
print("as it should be")
"""


@needs_mpi
def test_no_mpi_is_loaded_but_for_a_job_and_a_missing_one_is_named():
    assert output(python(NO_MPI_IS_LOADED)) == "as it should be\n"


# The wrong one is refused before it is initialised, so that the right one can be had.
OF_ANOTHER_LAUNCHER = """
import sys, pypdbp
try:
    pypdbp.start(mpi=sys.argv[1])
except pypdbp.StartError as error:
    assert "start it with" in str(error) and "PDBP_MPI" in str(error), error
else:
    raise AssertionError(f"{sys.argv[1]} is not of this launcher")
with pypdbp.start() as cluster:
    cluster.node.barrier(60)
    sys.stdout.write(f"node {cluster.node.index} of {cluster.size}\\n")
"""


@needs_mpi
@both_mpis
def test_the_mpi_of_another_launcher_is_refused(names):
    other, library = ("mpich", "libmpich.so.12") if "openmpi" in names[0] else ("openmpi", "libmpi.so.40")
    try:
        ctypes.CDLL(library)
    except OSError:
        pytest.skip(f"there is no {library}")
    ended = mpirun(names, 2, OF_ANOTHER_LAUNCHER, other)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.split("\n")) == ["", "node 0 of 2", "node 1 of 2"]


@needs_mpi
@both_mpis
@pytest.mark.parametrize("exception", ["RuntimeError('on purpose')", "SystemExit('on purpose')"])
def test_an_exception_in_one_rank_ends_the_job(names, exception):
    ended = mpirun(names, 2, FAILING.format(exception))
    assert ended.returncode != 0 and "on purpose" in ended.stderr, ended.stderr
    assert "before the end" in ended.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_whose_cluster_it_has(pair):
    pair.a.send(pair.to_b, b"received before")
    message = pair.b.recv(SOON)
    writer = pair.a.open(pair.to_b)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            calls = [
                pair.b.try_recv,
                lambda: pair.a.send(pair.to_b, b""),
                lambda: writer.write(b""),
                pair.cluster.node.stats,
                lambda: pair.cluster.node.register("child"),
            ]
            for call in calls:
                with pytest.raises(pypdbp.Forked):
                    call()
            assert bytes(message) == b"received before"
            # To be closed and dropped here means nothing.
            message.release()
            pair.cluster.close()
            pair.a.close()
            del message, writer
            pair.__dict__.clear()
            # A cluster of its own is as good as any.
            with pypdbp.start(nodes=1, transport="local") as own:
                part = own.node.register("part")
                part.send(part.id, b"own")
                assert bytes(part.recv(SOON)) == b"own"
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    message.release()
    writer.close()
    pair.a.send(pair.to_b, b"the parent goes on")
    assert bytes(pair.b.recv(SOON)) == b"the parent goes on"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_watch_that_a_forked_child_drops_wakes_nobody_in_the_parent():
    # It holds the node.
    watch = pypdbp.start(nodes=1, transport="local").node.watch()
    descriptor = watch.fileno()
    child = os.fork()
    if child == 0:
        del watch
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert select.select([descriptor], [], [], 0) == ([], [], [])


AT_EXIT = """
import sys, threading, pypdbp
cluster = pypdbp.start(nodes=2, transport="local")
parts = [node.register("part") for node in cluster.nodes]
begun = threading.Event()
def wait():
    begun.set()
    try:
        while True:
            parts[0].recv()
    except pypdbp.Closed:
        print("closed")
thread = threading.Thread(target=wait, daemon=True)
thread.start()
begun.wait()
parts[1].send(parts[1].id, b"held at the end")
held = memoryview(parts[1].recv())
writer = parts[1].open(parts[0].id)
room = parts[1].loan(parts[0].id, 8)
view = memoryview(room)
"""


@pytest.mark.parametrize("end", ["", "raise KeyError", "sys.exit(3)", "del cluster, parts"])
def test_a_program_may_end_with_everything_open(end):
    process = python(AT_EXIT + end)
    out, errors = process.communicate(timeout=2 * SOON)
    assert process.returncode == {"raise KeyError": 1, "sys.exit(3)": 3}.get(end, 0), errors
    assert ("KeyError" in errors) if end == "raise KeyError" else errors == ""
    assert out.strip() in ("closed", "")


def test_settings_are_keywords():
    with pypdbp.start(nodes=3, transport="local", block_bytes=4096, progress="inline", checksum=True, trace=None) as cluster:
        assert (cluster.size, len(cluster.nodes), cluster.node.name) == (3, 3, "node0")
        settings = cluster.settings
        assert [settings[key] for key in ("block_bytes", "progress", "checksum", "trace")] == ["4096", "inline", "on", "off"]


@pytest.mark.parametrize("settings", [{"nodes": 0}, {"no_such": 1}, {"progress": "magic"}, {"listen": "nowhere"}])
def test_settings_that_cannot_be_used_are_named(settings):
    with pytest.raises(pypdbp.ConfigError, match=next(iter(settings))) as raised:
        pypdbp.start(**settings)
    assert isinstance(raised.value, ValueError)


def test_the_environment_is_read_and_keywords_go_before_it(monkeypatch):
    monkeypatch.setenv("PDBP_NODES", "3")
    monkeypatch.setenv("PDBP_TRANSPORT", "local")
    with pypdbp.start() as cluster:
        assert cluster.size == 3
    with pypdbp.start(nodes=1) as cluster:
        assert cluster.size == 1
    monkeypatch.setenv("PDBP_NODES", "many")
    with pytest.raises(pypdbp.ConfigError, match="PDBP_NODES|nodes"):
        pypdbp.start()


@pytest.mark.skipif(pypdbp.HAS_MPI, reason="MPI was built in")
def test_without_mpi_a_launcher_is_told_so(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(pypdbp.StartError, match="without MPI"):
        pypdbp.start()


def test_errors_are_a_tree():
    for error, builtin in [
        (pypdbp.Timeout, TimeoutError),
        (pypdbp.PeerFailed, ConnectionError),
        (pypdbp.NoRoom, BlockingIOError),
        (pypdbp.NotFound, LookupError),
        (pypdbp.Closed, ValueError),
        (pypdbp.StreamBroken, EOFError),
        (pypdbp.Panic, pypdbp.PdbpError),
    ]:
        assert issubclass(error, pypdbp.PdbpError) and issubclass(error, builtin) and error("why").nodes == []


def test_what_was_closed_takes_no_memory():
    said = output(python("""
import pypdbp
def kilobytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4
with pypdbp.start(nodes=1, transport="local") as cluster:
    node = cluster.node
    for open_one in lambda: node.group("all"), lambda: node.register("part"):
        for i in range(2200):
            if i == 200:
                before = kilobytes()
            open_one().close()
        print(kilobytes() - before < 400)
"""))
    assert said == "True\nTrue\n"
