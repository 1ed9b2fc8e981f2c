"""A program's own circumstances on a GPU: graphs that are captured, contexts that it has made, one that is lost, no free memory, forks, many threads, kills, a daemon that stands still and one that
is killed. CUDA's driver is called itself, so PyTorch is not needed.

    python3 conditions.py MOUNT [DAEMON]

MOUNT is a directory of a LaneFS mount, DAEMON the process that serves it: without it the last two are left out. A line for each condition tells that it was right, wrong or left out, when it has ended; after
90 s (LANEFS_PATIENCE) in one the stacks of all threads are printed, and it ends. On a stand-in for CUDA's driver (lab/cuda) the conditions run that it can have."""

import array
import ctypes
import errno
import faulthandler
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback

import lanefs

MIB = 1 << 20
SIZE = 8 * MIB
PATIENCE = int(os.environ.get("LANEFS_PATIENCE", 90))  # s, for each condition
GLOBAL, THREAD_LOCAL, RELAXED = range(3)  # CUstreamCaptureMode
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()


class LeftOut(Exception):
    pass


def need(*names):
    for name in names:
        if not hasattr(cuda, name):
            raise LeftOut(f"no {name} here")


def call(name, *args):
    return getattr(cuda, name)(*args)


def do(name, *args):
    code = call(name, *args)
    assert code == 0, f"{name}: error {code}"


def n64(v):
    return ctypes.c_uint64(v)


class Memory:
    """Of the current context."""

    def __init__(self, size=SIZE):
        at = ctypes.c_void_p()
        do("cuMemAlloc_v2", ctypes.byref(at), n64(size))
        self.at, self.size = at.value, size
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (at.value, False), "version": 3}

    def bytes(self, size=None):
        size = size or self.size
        b = ctypes.create_string_buffer(size)
        do("cuMemcpyDtoH_v2", ctypes.byref(b), n64(self.at), n64(size))
        return b.raw

    def free(self):
        do("cuMemFree_v2", n64(self.at))


class Stream:
    def __init__(self, flags=1):
        at = ctypes.c_void_p()
        do("cuStreamCreate", ctypes.byref(at), flags)
        self.cuda_stream = at.value

    def fill(self, memory, value, size=None):
        fill(memory, value, self.cuda_stream, size)

    def synchronize(self):
        do("cuStreamSynchronize", ctypes.c_void_p(self.cuda_stream))

    def destroy(self):
        do("cuStreamDestroy_v2", ctypes.c_void_p(self.cuda_stream))


def fill(memory, value, stream, size=None):
    do("cuMemsetD8Async", n64(memory.at), ctypes.c_ubyte(value), n64(size or memory.size), ctypes.c_void_p(stream))


def late(stream, memory):
    """Puts work of some milliseconds on a stream."""
    for i in range(200):
        fill(memory, i, stream)


class Bench:
    """A file, what it has, and a handle of it."""

    def __init__(self, directory):
        self.path = os.path.join(directory, "conditions")
        self.data = random.Random(7).randbytes(SIZE)
        with open(self.path, "wb") as f:
            f.write(self.data)
        self.file = lanefs.open(self.path, "r+")

    def close(self):
        self.file.close()
        os.remove(self.path)


def refused(want, function, *args, **kwargs):
    try:
        got = function(*args, **kwargs)
    except OSError as e:
        got = e
    assert isinstance(got, OSError) and got.errno == want, f"{function.__name__}: {got!r}, not {errno.errorcode[want]}"
    return str(got)


def told(e):
    """What another thread failed with, and where."""
    return "".join(traceback.format_exception(type(e), e, e.__traceback__))


def begin(stream, mode):
    do("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.cuda_stream), mode)


def end(stream):
    graph = ctypes.c_void_p()
    do("cuStreamEndCapture", ctypes.c_void_p(stream.cuda_stream), ctypes.byref(graph))
    return graph


def launch(graph, stream):
    """The graph runs, where the driver has graphs."""
    if not hasattr(cuda, "cuGraphInstantiateWithFlags"):
        return
    run = ctypes.c_void_p()
    do("cuGraphInstantiateWithFlags", ctypes.byref(run), graph, ctypes.c_ulonglong(0))
    do("cuGraphLaunch", run, ctypes.c_void_p(stream.cuda_stream))
    stream.synchronize()
    do("cuGraphExecDestroy", run)
    do("cuGraphDestroy", graph)


def captured(b):
    """A captured stream is refused, and the graph has what the program put there."""
    m, n, s = Memory(), Memory(), Stream()
    b.file.read_into(n)  # so that there is a stage
    for mode in (GLOBAL, THREAD_LOCAL, RELAXED):
        for name in ("read_into", "write_from", "read_batch", "write_batch", "read_batch_on", "write_batch_on"):
            s.fill(m, 1)
            s.synchronize()
            begin(s, mode)
            s.fill(m, 2)
            pieces = () if name.endswith(("into", "from")) else ([0], [0], [1000])
            says = refused(errno.EINVAL, getattr(b.file, name), n, *pieces, stream=s)
            assert "captured into a graph" in says, says
            graph = end(s)
            launch(graph, s)
            if hasattr(cuda, "cuGraphInstantiateWithFlags"):
                assert m.bytes(100) == b"\2" * 100, "the graph did not run"
    assert b.file.read_into(n, stream=s) == SIZE
    s.synchronize()
    assert n.bytes() == b.data
    m.free(), n.free(), s.destroy()


def captured_elsewhere(b):
    """What other threads do, for the first time too, ends no capture; what waits for the device is done after it."""
    m, n, s, other = Memory(), Memory(), Stream(), Stream()
    for mode in (GLOBAL, THREAD_LOCAL, RELAXED):
        kept, wrong = [], []

        def work():
            try:
                do("cuCtxSetCurrent", context)
                with lanefs.open(b.path, "r+") as f:
                    assert f.read_into(n, stream=other) == SIZE
                    f.read_batch_on(n, [0, 5000], [0, 5000], [5000, SIZE - 5000], stream=other).wait()
                    f.write_batch(n, [0], [0], [4096], stream=other)
                    kept.append(f.map())
            except BaseException as e:
                wrong.append(e)

        begin(s, mode)
        s.fill(m, 3)
        t = threading.Thread(target=work)
        t.start()
        t.join()
        s.fill(m, 4)
        graph = end(s)
        launch(graph, s)
        for k in kept:
            k.close()
        assert not wrong, told(wrong[0])
        assert n.bytes() == b.data
    m.free(), n.free(), s.destroy(), other.destroy()


def own_context(b):
    """A context that the program has made: its default streams and its own, and memory of either context."""
    primary, own = Memory(), ctypes.c_void_p()
    if hasattr(cuda, "cuCtxCreate_v2"):
        do("cuCtxCreate_v2", ctypes.byref(own), 0, 0)
    else:
        need("cuCtxCreate_v4")
        do("cuCtxCreate_v4", ctypes.byref(own), None, 0, 0)
    m, busy, s = Memory(), Memory(), Stream()
    for stream in (None, 1, 2, s.cuda_stream):
        for memory in (m, primary):
            for count in (1, 40):
                step = SIZE // count
                at = list(range(0, count * step, step))
                late(stream, busy)
                fill(memory, 9, stream) if memory is m else None
                b.file.read_batch(memory, at, at, [step] * count, stream=0 if stream is None else stream)
                fill(busy, 0, stream)
                call("cuCtxSynchronize")
                assert memory.bytes(count * step) == b.data[: count * step], f"stream {stream}, {count} pieces"
    on = b.file.read_batch_on(m, [1], [0], [SIZE - 1], stream=s)
    on.wait()
    assert m.bytes(SIZE - 1) == b.data[1:]
    do("cuCtxSetCurrent", context)
    assert b.file.read_into(m, stream=s) == SIZE  # a thread of the primary context, with a stream of the other
    assert primary.bytes() == b.data
    do("cuCtxSetCurrent", own)
    m.free(), busy.free(), s.destroy()
    do("cuCtxSetCurrent", context)
    if hasattr(cuda, "cuCtxDestroy_v2"):
        do("cuCtxDestroy_v2", own)
    primary.free()


FAULT = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry fault(.param .u64 ns) {
	.reg .pred %p; .reg .b64 %r, %now, %end;
	ld.param.u64 %r, [ns]; mov.u64 %end, %globaltimer; add.u64 %end, %end, %r;
AGAIN:	mov.u64 %now, %globaltimer; setp.lt.u64 %p, %now, %end; @%p bra AGAIN;
	mov.u64 %r, 16; st.global.u64 [%r], %r; ret;
}
\0"""


class Fault:
    """What loses the context when a stream has come so far, and has waited for that many seconds."""

    def __init__(self):
        if hasattr(cuda, "fake_cuda_lose"):
            return
        module, self.f = ctypes.c_void_p(), ctypes.c_void_p()
        do("cuModuleLoadData", ctypes.byref(module), FAULT)
        do("cuModuleGetFunction", ctypes.byref(self.f), module, b"fault")

    def launch(self, stream, seconds):
        if hasattr(cuda, "fake_cuda_lose"):
            cuda.fake_cuda_hold(ctypes.c_void_p(stream.cuda_stream), n64(0))
            threading.Timer(seconds, self.lose).start()
            return
        ns = n64(int(seconds * 1e9))
        do("cuLaunchKernel", self.f, 1, 1, 1, 1, 1, 1, 0, ctypes.c_void_p(stream.cuda_stream), (ctypes.c_void_p * 1)(ctypes.addressof(ns)), None)

    def lose(self):
        do("cuCtxSetCurrent", context)
        cuda.fake_cuda_lose()


def alone(b, what):
    out = subprocess.run([sys.executable, __file__, os.path.dirname(b.path), what], timeout=PATIENCE, capture_output=True, text=True)
    assert out.returncode == 0 and out.stdout == "right\n", (out.returncode, out.stdout, out.stderr[-1500:])


def lost(b):
    """A kernel of the program's writes where there is nothing. Run in a process of its own."""
    alone(b, "lose")


def lost_before(b):
    """Likewise, while batches are behind it on its stream, which never reaches them: they end."""
    alone(b, "lose_before")


def lose_before(b):
    m, s, fault = Memory(), Stream(), Fault()
    for _ in range(3):
        assert b.file.read_into(m, stream=s) == SIZE
    s.synchronize()
    fault.launch(s, 1)
    batches = [(b.file.read_batch_on if i % 2 else b.file.write_batch_on)(m, [i], [0], [MIB // 2], stream=s) for i in range(6)]
    assert not any(k.done for k in batches), "before the fault"
    for k in batches:
        refused(errno.EIO, k.results)
    served_without(b, m, s)
    b.file.close()
    print("right", flush=True)


def served_without(b, m, s):
    for _ in range(3):
        says = refused(errno.EIO, b.file.read_into, m, stream=s)
        assert "CUDA_ERROR" in says and "lost" in says, says
    for _ in range(20):  # by every part of the stage
        plain = bytearray(SIZE)
        assert b.file.read_into(plain) == SIZE and plain == b.data, "the CPU's memory"


def lose(b):
    m, s, fault = Memory(), Stream(), Fault()
    for _ in range(3):
        assert b.file.read_into(m, stream=s) == SIZE
    mapping = None if hasattr(cuda, "fake_cuda_lose") else b.file.map()
    fault.launch(s, 0)
    while call("cuStreamSynchronize", ctypes.c_void_p(s.cuda_stream)) == 0:
        assert hasattr(cuda, "fake_cuda_lose"), "the kernel did no harm"
        time.sleep(0.001)
    served_without(b, m, s)
    try:
        if mapping:
            mapping.close()
    except OSError:
        pass
    with open(b.path, "rb") as g:
        assert g.read() == b.data
    print("right", flush=True)


def reset(b):
    """The program resets the device, which destroys the context with what the library has in it. Run in a process of its own."""
    need("cuDevicePrimaryCtxReset_v2")
    alone(b, "resets")


def resets(b):
    standin = hasattr(cuda, "fake_cuda_hold")
    again, plain = ctypes.c_void_p(), bytearray(SIZE)
    for _ in range(3):
        m, s = Memory(), Stream()
        every_way(b, m, s)
        mapping = None if standin else b.file.map()
        if standin:
            cuda.fake_cuda_hold(ctypes.c_void_p(s.cuda_stream), n64(0))
        else:
            late(s.cuda_stream, m)
        batches = [(b.file.read_batch_on if i % 2 else b.file.write_batch_on)(m, [0], [0], [MIB // 2], stream=s) for i in range(6)]
        do("cuDevicePrimaryCtxReset_v2", 0)
        for k in batches:
            try:
                k.results()
            except OSError as e:
                assert e.errno == errno.EIO, repr(e)
        refused_any(b.file.read_into, m)
        b.file.write_from(b.data)  # what the batches have not written, or wrote of memory that is no more
        assert b.file.read_into(plain) == SIZE and plain == b.data, "the CPU's memory, when there is no context"
        if mapping:
            mapping.close()
        do("cuDevicePrimaryCtxRetain", ctypes.byref(again), 0)
        do("cuCtxSetCurrent", again)
    m, s = Memory(), Stream()
    every_way(b, m, s)
    if not standin:
        with b.file.map() as mapping:
            do("cuMemcpyDtoDAsync_v2", n64(m.at), n64(mapping.__cuda_array_interface__["data"][0]), n64(SIZE), None)
            assert m.bytes() == b.data, "mapped again"
    print("right", flush=True)
    do("cuDevicePrimaryCtxReset_v2", 0)  # and ends with everything open


def every_way(b, m, s):
    """Reads and writes by copies and by the kernel, on a stream and not."""
    for count in (1, 40):
        step = SIZE // count
        at = list(range(0, count * step, step))
        for on in (False, True):
            fill(m, 9, s.cuda_stream)
            pieces = m, at, at, [step] * count, s
            got = b.file.read_batch_on(*pieces).results() if on else b.file.read_batch(*pieces)
            assert list(got) == [step] * count
            s.synchronize()
            assert m.bytes(count * step) == b.data[: count * step], f"{count} pieces, on a stream: {on}"
            if on:
                b.file.write_batch_on(*pieces).wait()
            else:
                b.file.write_batch(*pieces)
    with open(b.path, "rb") as g:
        assert g.read() == b.data, "written"


def full(b):
    """All of the GPU's memory is taken: what fails says so, and works again afterwards."""
    need("cuGraphLaunch")
    m, taken = Memory(), []
    step = 1 << 30
    while step >= MIB:
        try:
            taken.append(Memory(step))
        except AssertionError:
            step //= 4
    worked = 0
    for i in range(20):
        try:
            with lanefs.open(b.path) as f:
                f.read_into(m)
                with f.map():
                    pass
            worked += 1
        except OSError as e:
            assert e.errno in (errno.ENOMEM, errno.EIO, None), repr(e)
    for t in taken:
        t.free()
    assert b.file.read_into(m) == SIZE and m.bytes() == b.data, "afterwards"
    with b.file.map():
        pass
    m.free()
    return f"{worked} of 20 worked with none free"


def forked(b):
    """A child has nothing of its parent's, which goes on."""
    m = Memory()
    for _ in range(5):
        b.file.read_into(m)
        pid = os.fork()
        if pid == 0:
            try:
                signal.alarm(PATIENCE)
                try:
                    b.file.read_into(m)
                    os._exit(1)
                except Exception:
                    pass
                plain = bytearray(SIZE)
                with lanefs.open(b.path) as f:
                    os._exit(0 if f.read_into(plain) == SIZE and plain == b.data else 2)
            finally:
                os._exit(3)
        assert os.waitpid(pid, 0)[1] == 0, "the child"
        assert m.bytes() == b.data
    m.free()


def threads(b):
    """Many threads, each with a stream and a file of its own."""
    wrong = []

    def work(seed):
        try:
            do("cuCtxSetCurrent", context)
            r, m, s = random.Random(seed), Memory(MIB), Stream()
            with lanefs.open(b.path) as f:
                for _ in range(60):
                    count = r.choice((1, 3, 50))
                    n = r.randrange(1, MIB // count)
                    fo = [r.randrange(SIZE - n) for _ in range(count)]
                    to = [i * (MIB // count) for i in range(count)]
                    if r.random() < 0.5:
                        f.read_batch(m, fo, to, [n] * count, stream=s)
                    else:
                        f.read_batch_on(m, array.array("q", fo), to, [n] * count, stream=s).wait()
                    s.synchronize()
                    got = m.bytes()
                    assert all(got[t : t + n] == b.data[o : o + n] for o, t in zip(fo, to)), (seed, count, n)
            m.free(), s.destroy()
        except BaseException as e:
            wrong.append(e)

    all_of_them = [threading.Thread(target=work, args=(i,)) for i in range(24)]
    for t in all_of_them:
        t.start()
    for t in all_of_them:
        t.join()
    assert not wrong, f"{len(wrong)} threads: {told(wrong[0])}"


def killed(b):
    """Programs that are killed in the middle: others do not notice."""
    r = random.Random(11)
    m = Memory()
    for _ in range(4):
        children = [subprocess.Popen([sys.executable, __file__, os.path.dirname(b.path), "read"], stdout=subprocess.PIPE) for _ in range(3)]
        for c in children:
            assert c.stdout.readline() == b"reads\n"
        time.sleep(r.random() / 5)
        for c in children:
            c.kill()
            c.wait()
            c.stdout.close()
        assert b.file.read_into(m) == SIZE and m.bytes() == b.data
    m.free()


def read(b):
    m, s = Memory(), Stream()
    b.file.read_into(m, stream=s)
    print("reads", flush=True)
    while True:
        with b.file.map(length=MIB):
            b.file.read_batch_on(m, [0] * 8, range(0, SIZE, MIB), [MIB] * 8, stream=s)
        b.file.read_into(m, stream=s)


def devices(b):
    """Memory of each GPU while another one is current."""
    count = ctypes.c_int()
    do("cuDeviceGetCount", ctypes.byref(count))
    if count.value < 2:
        raise LeftOut("one GPU here")
    contexts, memories = [], []
    for i in range(count.value):
        c = ctypes.c_void_p()
        do("cuDevicePrimaryCtxRetain", ctypes.byref(c), i)
        do("cuCtxSetCurrent", c)
        contexts.append(c)
        memories.append(Memory())
    for i in range(count.value):
        for k in range(count.value):
            do("cuCtxSetCurrent", contexts[i])
            assert b.file.read_into(memories[k]) == SIZE
            assert b.file.write_from(memories[k]) == SIZE
            do("cuCtxSetCurrent", contexts[k])
            do("cuStreamSynchronize", None)
            assert memories[k].bytes() == b.data, f"of {k} while {i} is current"
    for c, m in zip(contexts, memories):
        do("cuCtxSetCurrent", c)
        m.free()
    do("cuCtxSetCurrent", context)


def stopped(b):
    """The daemon stands still for two seconds while batches are on streams."""
    pid = daemon()
    m, after, s = Memory(), Memory(), Stream()
    b.file.read_into(m, stream=s)
    s.synchronize()
    subprocess.Popen(["sh", "-c", f"sleep {PATIENCE // 2}; kill -CONT {pid}"])  # whatever becomes of this program
    os.kill(pid, signal.SIGSTOP)
    try:
        batches = [b.file.read_batch_on(m, [i], [0], [MIB], stream=s) for i in range(4)]  # for more the stage has no room, and the call waits
        s.fill(after, 1)
        time.sleep(2)
        assert not batches[0].done, "the daemon stands still"
    finally:
        os.kill(pid, signal.SIGCONT)
    s.synchronize()
    assert [list(k.results()) for k in batches] == [[MIB]] * 4 and m.bytes() == b.data[3 : MIB + 3] + b.data[MIB:]
    m.free(), after.free(), s.destroy()


def gone(b):
    """The daemon is killed while batches are on streams: they fail, and the streams go on."""
    pid = daemon()
    m, s = Memory(), Stream()
    b.file.read_into(m, stream=s)
    s.synchronize()
    os.kill(pid, signal.SIGSTOP)
    batches = [b.file.read_batch_on(m, [0], [0], [MIB], stream=s) for _ in range(4)]
    os.kill(pid, signal.SIGKILL)
    for k in batches:
        refused_batch(k)
    s.synchronize()
    refused_any(b.file.read_into, m, stream=s)
    m.free(), s.destroy()


def refused_batch(batch):
    try:
        got = list(batch.results())
    except OSError:
        return
    assert all(n < 0 for n in got), got


def refused_any(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except OSError:
        return
    raise AssertionError(f"{function.__name__} works")


def daemon():
    if len(sys.argv) < 3:
        raise LeftOut("no daemon was named")
    return int(sys.argv[2])


def main():
    do("cuInit", 0)
    do("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    do("cuCtxSetCurrent", context)
    if sys.argv[2:] in (["lose"], ["lose_before"], ["resets"], ["read"]):
        b = Bench.__new__(Bench)
        b.path, b.data = os.path.join(sys.argv[1], "conditions"), random.Random(7).randbytes(SIZE)
        b.file = lanefs.open(b.path, "r+")
        {"lose": lose, "lose_before": lose_before, "resets": resets, "read": read}[sys.argv[2]](b)
        return 0
    b, wrong = Bench(sys.argv[1]), 0
    for condition in (captured, captured_elsewhere, own_context, lost, lost_before, reset, full, forked, threads, killed, devices, stopped, gone):
        start = time.monotonic()
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        name = condition.__name__
        try:
            note = condition(b)
            print(f"right {name}, {time.monotonic() - start:.1f} s{': ' + note if note else ''}", flush=True)
        except LeftOut as e:
            print(f"skip  {name}: {e}", flush=True)
        except Exception as e:
            wrong = 1
            print(f"WRONG {name}, {time.monotonic() - start:.1f} s: {type(e).__name__}: {e}", flush=True)
            do("cuCtxSetCurrent", context)
    faulthandler.cancel_dump_traceback_later()
    if len(sys.argv) < 3:
        b.close()
    return wrong


if __name__ == "__main__":
    sys.exit(main())
