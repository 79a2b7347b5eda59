"""What the tests share. No test depends on how far another thread has come: they wait for what they need, for SOON at most."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import pypdbp
import pytest

#: Seconds: longer than anything takes that works.
SOON = 60.0


@pytest.fixture
def cluster():
    with pypdbp.start(nodes=2, transport="local", timeout_ms=60_000) as cluster:
        yield cluster


@pytest.fixture
def pair(cluster):
    """Two parts on two nodes: `a` sends to `to_b`, `b` to `to_a`."""
    a, b = (node.register(name) for node, name in zip(cluster.nodes, "ab"))
    return SimpleNamespace(a=a, b=b, to_a=b.find("a", SOON), to_b=a.find("b", SOON), cluster=cluster)


class Thread(threading.Thread):
    """A thread whose result, or exception, `join` gives."""

    def __init__(self, target, *args):
        super().__init__(daemon=True)
        self._call = lambda: target(*args)
        self.start()

    def run(self):
        try:
            self.result, self.error = self._call(), None
        except BaseException as error:
            self.result, self.error = None, error

    def join(self):
        super().join(SOON)
        assert not self.is_alive(), "the thread hangs"
        if self.error is not None:
            raise self.error
        return self.result


def is_in_call(part) -> bool:
    """Whether another thread waits in a call of the part."""
    try:
        assert part.try_recv() is None
    except pypdbp.Busy:
        return True
    return False


def interrupt_when_in_call(part, then=lambda: None):
    """Sends SIGINT to the main thread when that waits in a call of the part. That this thread runs meanwhile shows that the GIL is free."""
    main = threading.main_thread().ident

    def interrupt():
        while not is_in_call(part):
            pass
        signal.pthread_kill(main, signal.SIGINT)
        then()

    return Thread(interrupt)


def cause_event(pair) -> None:
    """Sends a message to a part of `b`'s node that is gone: there the event "unroutable"."""
    sent = False
    while not sent:
        gone = pair.b.node.register("gone")
        target = pair.a.find("gone", SOON)
        gone.close()
        # Refused if `a`'s node has been told of it by now.
        with contextlib.suppress(pypdbp.NotFound):
            pair.a.send(target, b"too late")
            sent = True
    pair.a.flush()


def python(code: str, *args: str, **variables: str) -> subprocess.Popen:
    """A process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PDBP_")}
    command = [sys.executable, "-X", "faulthandler", "-c", code, *args]
    return subprocess.Popen(command, env=environment | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def output(process: subprocess.Popen) -> str:
    """What a process that ends well has printed."""
    try:
        out, errors = process.communicate(timeout=2 * SOON)
    except subprocess.TimeoutExpired:
        # faulthandler says where it hangs.
        process.send_signal(6)
        out, errors = process.communicate()
    # Who joins says so if the founder, which may have no processor, is not there for seconds.
    errors = [line for line in errors.splitlines() if "; still trying" not in line]
    assert (process.returncode, errors) == (0, []), "\n".join([out, *errors])
    return out


def free_address() -> str:
    """An address of this host that is free. Ports of 127.0.0.1 may go to other programs, or to their connections, before it is used."""
    process = os.getpid()
    with socket.socket() as server:
        server.bind((f"127.{1 + process // 250 % 250}.{process % 250}.1", 0))
        host, port = server.getsockname()
    return f"{host}:{port}"
