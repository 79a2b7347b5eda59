"""Python objects as messages."""

import struct

import pypdbp
import pytest
from conftest import SOON, Thread
from pypdbp import objects


def there(pair, obj, **options):
    sending = Thread(objects.send, pair.a, pair.to_b, obj, SOON)
    with pair.b.recv(SOON) as message:
        sending.join()
        return objects.load(message, **options)


@pytest.mark.parametrize("obj", [None, 7, "text", {"a": [1, (2, 3)]}, b"x" * 1_000_000, {1, 2}, bytearray(b"y" * 100)])
def test_an_object_arrives_as_it_was(pair, obj):
    assert there(pair, obj) == obj


def test_arrays_are_read_where_they_arrived(pair):
    numpy = pytest.importorskip("numpy")
    frames = numpy.arange(500_000, dtype="f8").reshape(1000, 500)
    column = numpy.asfortranarray(frames[:, :3])
    # Longer than what may be under way without a reader.
    sending = Thread(objects.send, pair.a, pair.to_b, {"frames": frames, "column": column}, SOON)
    message = pair.b.recv(SOON)
    sending.join()
    found = objects.load(message)
    assert (found["frames"] == frames).all() and (found["column"] == column).all()
    assert not found["frames"].flags.owndata and not found["frames"].flags.writeable
    with pytest.raises(BufferError):
        message.release()
    copied = objects.load(message, copy=True)
    copied["frames"][0, 0] = -1
    del found
    message.release()
    assert copied["frames"][0, 0] == -1


def start(count, length, version=1):
    return struct.pack("<4sB3xQQ", b"PDBO", version, count, length)


@pytest.mark.parametrize(
    ("bytes_", "text"),
    [
        (b"", "0 bytes that objects.send has not sent"),
        (b"PDBO", "4 bytes that objects.send has not sent"),
        (start(0, 1, version=2) + bytes(50), "has not sent"),
        (start(2**63, 0), "9223372036854775808 buffers"),
        (start(0, 2**64 - 1), "ends before the 18446744073709551615 bytes"),
        (start(1, 0) + struct.pack("<Q", 9) + bytes(8), "ends before the 9 bytes at 32"),
    ],
)
def test_what_is_no_object_is_refused_before_anything_is_loaded(pair, bytes_, text):
    pair.a.send(pair.to_b, bytes_)
    with pair.b.recv(SOON) as message, pytest.raises(pypdbp.PdbpError, match=text):
        objects.load(message)
