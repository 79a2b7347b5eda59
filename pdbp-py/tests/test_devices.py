"""Memory of CUDA devices, on a device, or on the library that stands in for the driver (ci/python)."""

import ctypes
import os
import signal
import weakref

import pypdbp
import pytest
from conftest import SOON, Thread, interrupt_when_in_call

try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError:
    driver = None

needs_driver = pytest.mark.skipif(driver is None, reason="there is no CUDA driver")


def check(code):
    assert code == 0, code


@pytest.fixture(scope="module")
def context():
    check(driver.cuInit(0))
    context = ctypes.c_void_p()
    check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(driver.cuCtxSetCurrent(context))
    return context


class DeviceArray:
    """Bytes of the first device, as libraries for arrays show them."""

    def __init__(self, context, content, **interface):
        self.context, self.size = context, len(content)
        self.address = ctypes.c_uint64()
        check(driver.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(self.size)))
        check(driver.cuMemcpyHtoD_v2(self.address, bytes(content), ctypes.c_size_t(self.size)))
        data = (self.address.value, False)
        default = {"shape": (self.size,), "typestr": "|u1", "data": data, "strides": None, "version": 3, "stream": 1}
        self.__cuda_array_interface__ = default | interface

    def tobytes(self):
        host = ctypes.create_string_buffer(self.size)
        check(driver.cuMemcpyDtoH_v2(host, self.address, ctypes.c_size_t(self.size)))
        return host.raw

    def __del__(self):
        driver.cuCtxSetCurrent(self.context)
        # The stand-in ends a program that frees what a copy uses.
        driver.cuMemFree_v2(self.address)


@needs_driver
def test_an_array_goes_from_device_to_device(context, pair):
    data = bytes(i % 251 for i in range(1_000_000))
    out = DeviceArray(context, bytes(len(data) + 1), stream=None)
    # Also as rows of more bytes each, with the strides that these have.
    source = DeviceArray(context, data, shape=(1000, 125), typestr="<f8", strides=(1000, 8), stream=2)
    receiving = Thread(pair.b.recv_device, out, SOON)
    pair.a.send_device(pair.to_b, source, SOON)
    assert receiving.join() == (pair.to_a, len(data))
    assert out.tobytes() == data + b"\0"


@needs_driver
def test_it_arrives_as_a_stream_too(context, pair):
    data = b"of the device" * 10_000
    receiving = Thread(lambda: pair.b.accept(SOON).read())
    pair.a.send_device(pair.to_b, DeviceArray(context, data, version=2), SOON)
    assert receiving.join() == data


@needs_driver
def test_what_is_longer_than_the_array_is_refused(context, pair):
    receiving = Thread(pair.b.recv_device, DeviceArray(context, bytes(99)), SOON)
    try:
        pair.a.send_device(pair.to_b, DeviceArray(context, bytes(100)), SOON)
    except pypdbp.PdbpError:
        pass
    with pytest.raises(pypdbp.TooLong, match="99 bytes"):
        receiving.join()


@needs_driver
def test_after_a_timeout_the_array_is_the_programs_again(context, pair):
    out = DeviceArray(context, bytes(1000))
    with pytest.raises(pypdbp.Timeout):
        pair.b.recv_device(out, 0.01)
    del out
    # Nobody reads it, and there is more of it than the rows take.
    source = DeviceArray(context, bytes(64 << 20))
    with pytest.raises(pypdbp.Timeout):
        pair.a.send_device(pair.to_b, source, 0.01)
    del source


@needs_driver
def test_after_a_failure_an_array_that_a_copy_may_use_is_never_freed(context, monkeypatch):
    if "DRIVER_DELAY" not in os.environ:
        pytest.skip("this driver fails at nothing")
    readers = []

    def handler(*_):
        # There is room for one more copy, of which nobody can say when it is over.
        readers.append(b.accept(SOON))
        readers[0].read(1 << 20)
        monkeypatch.setenv("DRIVER_DELAY", "1000000000")
        monkeypatch.setenv("DRIVER_FAILS", "cuEventQuery,cuEventSynchronize=999")

    # That is how long it waits for the array, too.
    settings = {"nodes": 1, "transport": "local", "progress": "inline", "timeout_ms": 1000}
    with pypdbp.start(**settings) as cluster, cluster.node.register("a") as a, cluster.node.register("b") as b:
        array = DeviceArray(context, bytes(64 << 20))
        before = signal.signal(signal.SIGINT, handler)
        interrupting = interrupt_when_in_call(a)
        with pytest.raises(pypdbp.DeviceError):
            a.send_device(b.id, array, SOON)
        interrupting.join()
        signal.signal(signal.SIGINT, before)
        owner = weakref.ref(array)
        del array
        assert owner() is not None
        monkeypatch.undo()


@needs_driver
def test_arrays_that_cannot_be_sent_or_received_say_why(context, pair):
    def refused(error, text, **interface):
        with pytest.raises(error, match=text):
            pair.a.send_device(pair.to_b, DeviceArray(context, bytes(100), **interface), SOON)

    refused(BufferError, "not C-contiguous", shape=(10, 5), strides=(10, 1))
    refused(BufferError, "has a mask", mask=object())
    refused(ValueError, "0 is no stream", stream=0)
    # Such arrays have no address in most libraries.
    refused(BufferError, "no bytes", shape=(5, 0), data=(0, False))
    refused(pypdbp.DeviceError, "cuPointerGetAttribute", data=(id(pair), False))
    with pytest.raises(TypeError, match="not bytes"):
        pair.a.send_device(pair.to_b, b"of the host", SOON)
    with pytest.raises(TypeError, match="part.find"):
        pair.a.send_device("b@node1", DeviceArray(context, bytes(1)), SOON)
    array = DeviceArray(context, bytes(1))
    array.__cuda_array_interface__["data"] = (array.address.value, True)
    with pytest.raises(BufferError, match="read-only"):
        pair.b.recv_device(array, SOON)


def test_without_a_driver_it_says_what_is_missing(pair):
    if driver is not None:
        pytest.skip("there is a CUDA driver")

    class Array:
        __cuda_array_interface__ = {"shape": (1,), "typestr": "|u1", "data": (4096, False), "version": 3}

    with pytest.raises(pypdbp.DeviceError, match="libcuda.so.1 cannot be loaded"):
        pair.a.send_device(pair.to_b, Array())
