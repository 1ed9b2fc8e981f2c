"""Run by the Go test beside this, which holds back the mount's device: the interpreter's end waits for nothing, says nothing and does no harm, whatever is under way.

What is under way is the argument. It begins after a line, when the device is held back. A line says that it has; another one comes when the device has a request.
"""

import array
import asyncio
import atexit
import os
import sys
import threading

import lanefs

N = 3 << 20
path = os.path.join(os.environ["LANEFS_TEST_DIR"], "file")
f = lanefs.open(path, "r+")
into, data = bytearray(N), bytes(i % 251 for i in range(N))
assert f.read_into(bytearray(10)) == 10


def patient(loop):
    """The loop, whose debug mode is on, does not say that the machine is busy."""
    loop.slow_callback_duration = 3600
    return loop


def batch(new_loop):
    """An event loop that is closed with a batch pending."""
    loop = patient(new_loop())

    async def begin():
        kept.append(asyncio.ensure_future(f.read_batch_async(into, [0], [0], [N])))
        kept[-1]._log_destroy_pending = False  # asyncio says, and rightly, that the program has forgotten it
        await asyncio.sleep(0)
    loop.run_until_complete(begin())
    loop.close()


kept = []


def queued():
    """Likewise, of more than the executor has threads."""
    loop = patient(asyncio.new_event_loop())

    async def begin():
        for _ in range(100):
            kept.append(asyncio.ensure_future(f.read_batch_async(bytearray(10), [0], [0], [10])))
            kept[-1]._log_destroy_pending = False
        await asyncio.sleep(0)
    loop.run_until_complete(begin())
    loop.close()


def live():
    """An event loop of a thread that the end waits for: of more batches than the executor has threads, each gets what it has asked for."""
    import concurrent.futures.thread  # noqa: F401: what registers itself first is called last, and this one's end waits for the batches
    threading._register_atexit(lambda: print("at the end", flush=True))  # the package's comes before it

    begun = threading.Event()

    async def read():
        patient(asyncio.get_running_loop())
        memory = [bytearray(b"x" * 10) for _ in range(100)]
        batches = [asyncio.ensure_future(f.read_batch_async(m, [0], [0], [10])) for m in memory]
        await asyncio.sleep(0)
        begun.set()
        got = await asyncio.gather(*batches, return_exceptions=True)
        bad = [n for n, m in zip(got, memory) if not isinstance(n, array.array) or list(n) != [10] or any(m)]
        print(bad or "all", flush=True)
    threading.Thread(target=lambda: asyncio.run(read())).start()
    begun.wait()


def thread():
    """A daemon thread in a call."""
    threading.Thread(target=lambda: f.read_batch(into, [0], [0], [N]), daemon=True).start()


def thread_straight():
    """Likewise, to the mount's memory."""
    b = lanefs.Buffer(f, N)
    threading.Thread(target=lambda: f.read_into(b), daemon=True).start()


def thread_maps():
    """Likewise, of one that maps."""
    threading.Thread(target=f.map, daemon=True).start()


def ring():
    """Requests of a ring, whose futures are kept, or dropped."""
    b = lanefs.Buffer(f, N)
    kept.append(f.ring.read(f, b))
    f.ring.write(f, b)
    kept[0].add_done_callback(print)


def os_exit():
    """A process that ends at once."""
    ring()
    thread()
    return lambda: os._exit(0)


def at_exit():
    """A program's own functions at the end, of which some come after the package's."""
    atexit.register(f.ring.read, f, lanefs.Buffer(f, N))
    ring()


def loop():
    batch(asyncio.new_event_loop)


def uvloop():
    import uvloop
    batch(uvloop.new_event_loop)


print("ready", flush=True)
sys.stdin.readline()
then = globals()[sys.argv[1]]()
print("under way", flush=True)
sys.stdin.readline()
if then is not None:
    then()
