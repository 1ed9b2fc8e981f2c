"""Run by the Go test beside this, which holds back the mount's device: a wait for it ends with the exception of a signal's handler, at once, and what was under way then does no harm.

Of each case it prints the name, and waits for a line; the test then holds the device back, has the case go on by another line, sends SIGINT when the device has a request, reads
"interrupted", and lets the device go on. Where the program says "waits" there is another line and the signal comes after that word. The first line of all is the number of a thread that does nothing.
"""

import asyncio
import concurrent.futures
import os
import signal
import sys
import threading

import lanefs

path = os.path.join(os.environ["LANEFS_TEST_DIR"], "file")
N = 3 << 20
data = bytes(i % 251 for i in range(N))
other = os.path.join(os.environ["LANEFS_TEST_DIR"], "other")
third = os.path.join(os.environ["LANEFS_TEST_DIR"], "third")
for name in (path, other, third):
    with open(name, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
f, g, h = lanefs.open(path, "r+"), lanefs.open(other), lanefs.open(third)
into = bytearray(N)
assert f.read_into(bytearray(10)) == 10


def read():
    f.read_batch(into, [0, 100], [0, N // 2], [N // 2, N // 2])


def write():
    f.write_batch(data, [0], [0], [N])


def behind():
    """The stage is a thread's whose batch waits for the device."""
    after(lambda: f.read_into(bytearray(N)))
    read()


def mapped_behind():
    """The connection is a thread's whose call waits for the device."""
    after(lambda: g.map().close())
    h.map()


def polled():
    """The caller waits for its own request, and polls no more."""
    threads.append(threading.Thread(target=lambda: (sys.stdin.readline(), print("waits", flush=True))))
    threads[-1].start()
    f.read_into(lanefs.Buffer(f, N))


def full():
    """There is no room in the ring."""
    ring, b = lanefs.Ring(f, 1), lanefs.Buffer(f, N)
    for _ in range(2):
        ring.read(f, b)


def after(call):
    """Has a thread begin a call for which the device has a request when this returns."""
    thread = threading.Thread(target=call)
    thread.start()
    threads.append(thread)
    sys.stdin.readline()
    print("waits", flush=True)


def again():
    """A handler that raises nothing, uses the mount itself, and is run in the middle of the wait."""
    def handler(*_):
        got = bytearray(100)
        try:
            seen.append((g.read_into(got, 7) == 100 and got == data[7:107], g.read_batch(got, [5], [0], [100])[0] == 100 and got == data[5:105]))
        except BaseException as e:
            seen.append(e)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("handled", flush=True)
    seen = []
    signal.signal(signal.SIGINT, handler)
    try:
        read()  # and it is interrupted by the second one
    finally:
        assert seen == [(True, True)], seen


def mapped():
    h.map()


def dropped():
    """What the garbage collector finds is let go of without a wait: the handler of a signal that raised there would not be heard."""
    b = lanefs.Buffer(f, N)
    f.ring.read(f, b)
    sys.stdin.readline()  # the daemon has it; one that comes after the memory has gone fails
    del b  # the daemon lets go of it when the request has ended
    print("waits", flush=True)
    f.session.wait()


def released():
    """What a thread closes waits for the request that uses it, and other calls do not wait for that."""
    b = lanefs.Buffer(f, N)
    f.ring.read(f, b)
    sys.stdin.readline()
    thread = threading.Thread(target=b.close)
    thread.start()
    threads.append(thread)
    f.session.wait(0.2)  # likely enough it waits by then
    lanefs.Buffer(f, 4096).close()
    assert thread.is_alive()
    print("waits", flush=True)
    f.session.wait()


def cancelled(*batches):
    """Batches of an event loop that has one thread for them. The first is cancelled by the signal, as a program's own timeout would, then the others."""
    async def go():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
        tasks = [asyncio.ensure_future(b()) for b in batches]
        loop.add_signal_handler(signal.SIGINT, tasks[-1].cancel)
        for t in reversed(tasks):
            if t is not tasks[-1]:
                t.cancel()
            try:
                await t
            except asyncio.CancelledError:
                pass
            else:
                raise SystemExit("a batch ended")
        loop.remove_signal_handler(signal.SIGINT)
    asyncio.run(go())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    raise KeyboardInterrupt


def cancelled_read():
    cancelled(lambda: f.read_batch_async(into, [0, 100], [0, N // 2], [N // 2, N // 2]))


def cancelled_write():
    cancelled(lambda: f.write_batch_async(data, [0], [0], [N]))


def cancelled_queued():
    """The second has no thread, for the first has it."""
    cancelled(lambda: f.read_batch_async(into, [0], [0], [N]), lambda: f.read_batch_async(into, [0], [0], [N]))


signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have it ignored, as a shell does in the background
signal.alarm(400)  # nothing hangs
threads = []
idle = threading.Thread(target=threading.Event().wait, daemon=True)
idle.start()
print(idle.native_id, flush=True)
for case in (read, write, read, behind, again, cancelled_read, cancelled_write, cancelled_queued, dropped, released, polled, full, mapped_behind, mapped):
    print(case.__name__, flush=True)
    sys.stdin.readline()
    try:
        case()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    else:
        raise SystemExit(f"{case.__name__} was not interrupted")
    into[:] = bytes(N)
    sys.stdin.readline()  # the device goes on
    assert into == bytes(N), f"{case.__name__}: memory was written to after the interruption"
    for t in threads:
        t.join()
    assert list(f.read_batch(into, [0], [0], [N])) == [N] and into == data, case.__name__
with h.map() as m:
    assert m.memoryview() == data
print("ok", flush=True)
