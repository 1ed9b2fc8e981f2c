"""Run by the Go test beside this: what the interpreter or a program's event loop is, and what becomes of it. The argument says which."""

import asyncio
import atexit
import gc
import os
import sys

path = os.path.join(os.environ["LANEFS_TEST_DIR"], "file")


@atexit.register
def before():
    """Comes after all that the package has registered."""
    if sys.argv[1] == "at_exit":
        check(f)
        with lanefs.open(path) as again:
            check(again)
        print("ok")


import lanefs


def check(of):
    into = bytearray(100)
    if of.read_into(into) != 100 or into != bytes(100) or list(of.read_batch(into, [0], [0], [100])) != [100]:
        raise SystemExit("wrong bytes")


async def awaited():
    into = bytearray(100)
    got = list(await f.read_batch_async(into, [0, 8], [0, 50], [50, 50]))
    if got != [50, 50]:
        raise SystemExit(f"wrong: {got}")


f = lanefs.open(path, "r+")
check(f)


def plain():
    print("ok")


def mapped():
    global kept
    kept = [f.map(), f.map().memoryview(), lanefs.Buffer(f, 4096), f.ring]
    print("ok")


def frozen():
    mapped()
    gc.freeze()


def at_exit():
    pass


def uvloop():
    import uvloop
    loop = uvloop.new_event_loop()
    loop.run_until_complete(awaited())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    print("ok")


def anyio():
    import anyio
    anyio.run(awaited)
    print("ok")


def trio():
    import trio
    try:
        trio.run(awaited)
    except RuntimeError as e:
        if "trio.to_thread.run_sync" not in str(e):
            raise
    trio.run(trio.to_thread.run_sync, check, f)
    print("ok")


def subinterpreter():
    import _xxsubinterpreters as interpreters
    one = interpreters.create()
    interpreters.run_string(one, f"""
import sys
sys.path[:] = {sys.path!r}
import lanefs
with lanefs.open({path!r}) as f:
    into = bytearray(b'x' * 100)
    print(f.read_into(into), into == bytes(100), f.map().memoryview()[:3] == bytes(3))
""")
    interpreters.destroy(one)
    check(f)
    print("ok")


globals()[sys.argv[1]]()
