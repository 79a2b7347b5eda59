"""What needs numpy."""

import pypdbp
import pytest
from conftest import SOON, Thread

np = pytest.importorskip("numpy")


def test_arrays_are_sent_and_read_in_place(pair):
    x = np.arange(12, dtype="f4").reshape(3, 4)
    pair.a.send(pair.to_b, x)
    with pair.b.recv(SOON) as message:
        y = np.frombuffer(message, "f4").reshape(3, 4)
        assert (x == y).all() and not y.flags.writeable and not y.flags.owndata
        with pytest.raises(BufferError):
            message.release()
        del y
    assert pair.b.messages_held == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.arange(12).reshape(3, 4)[:, ::2],
        lambda: np.arange(12).reshape(3, 4).T,
        lambda: np.asfortranarray(np.ones((3, 4))),
        lambda: np.broadcast_to(np.ones(3), (4, 3)),
    ],
)
def test_arrays_that_are_not_contiguous_are_refused(pair, make):
    for send in pair.a.send, pair.a.send_rows, pair.a.send_array:
        with pytest.raises(BufferError, match="contiguous"):
            send(pair.to_b, make())
    assert pair.b.try_recv() is None


def test_objects_are_not_bytes(pair):
    objects = np.array([{}, []], dtype=object)
    for send in pair.a.send, pair.a.send_rows, pair.a.send_array:
        with pytest.raises(BufferError, match="objects"):
            send(pair.to_b, objects)
    pair.a.send_array(pair.to_b, np.zeros(2))
    with pytest.raises((BufferError, ValueError)):
        pair.b.recv_array(out=objects, timeout=SOON)


def test_a_table_is_sent_by_rows(pair):
    table = np.arange(3000, dtype="f8").reshape(1000, 3)
    assert pair.a.send_rows(pair.to_b, table) == 1000
    pair.a.flush()
    rows = []
    while len(rows) < 1000:
        with pair.b.recv_batch(SOON) as batch:
            rows.extend(np.frombuffer(batch, "f8").reshape(len(batch), -1).tolist())
    assert rows == table.tolist()


def test_a_loan_is_an_array(pair):
    with pair.a.loan(pair.to_b, 4096) as room:
        np.frombuffer(room, "f4")[:] = 7
    with pair.b.recv(SOON) as message:
        assert (np.frombuffer(message, "f4") == 7).all()


@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "i8", "u8", "f4", "f8", "c16", "?", "S5", "U3", "V5", ">f8"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 0), (2, 3, 4)])
def test_arrays_as_streams(pair, dtype, shape):
    x = np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)
    for out in None, np.empty_like(x):
        sending = Thread(pair.a.send_array, pair.to_b, x)
        got = pair.b.recv_array(out=out, timeout=SOON)
        sending.join()
        assert out is None or got is out
        assert (got.dtype, got.shape, got.tobytes()) == (x.dtype, x.shape, x.tobytes())


def test_no_array_is_lost_for_an_out_that_cannot_be_filled(pair):
    x = np.arange(4)
    pair.a.send_array(pair.to_b, x)
    read_only = np.zeros(4, int)
    read_only.flags.writeable = False
    for out, text in (read_only, "a copy of the array"), (np.zeros(8, int)[::2], "ascontiguousarray"), (bytes(32), "a bytearray"):
        with pytest.raises(BufferError, match=text):
            pair.b.recv_array(out, SOON)
    with pytest.raises(TypeError, match="bytes-like"):
        pair.b.recv_array([0] * 4, SOON)
    assert (pair.b.recv_array(np.zeros(4, int), SOON) == x).all()


def test_elements_of_several_fields_need_an_array_for_them(pair):
    x = np.array([(1, 2.5), (3, 4.5)], dtype=[("n", "i4"), ("x", "f8")])
    pair.a.send_array(pair.to_b, x)
    assert (pair.b.recv_array(out=np.zeros_like(x), timeout=SOON) == x).all()
    pair.a.send_array(pair.to_b, x)
    with pytest.raises(ValueError, match="out"):
        pair.b.recv_array(timeout=SOON)


def test_a_large_array_goes_both_ways(pair):
    x = np.random.default_rng(1).random((500, 1000))

    def answer():
        got = pair.b.recv_array(timeout=SOON)
        got *= 2
        pair.b.send_array(pair.to_a, got)

    answering = Thread(answer)
    pair.a.send_array(pair.to_b, x)
    out = np.empty_like(x)
    assert pair.a.recv_array(out=out, timeout=SOON) is out
    answering.join()
    assert (out == 2 * x).all()


def test_times_have_no_bytes_that_others_know(pair):
    times = np.array(["2026-01-01"], dtype="M8[s]")
    with pytest.raises(BufferError, match=r'times.view\("i8"\)'):
        pair.a.send(pair.to_b, times)
    pair.a.send(pair.to_b, times.view("i8"))
    assert np.frombuffer(pair.b.recv(SOON), "M8[s]") == times
    assert pypdbp.HAS_MPI in (False, True)
