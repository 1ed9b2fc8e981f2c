"""A connection to the daemon of one mount. There is one a process and mount."""

import array
import collections
import errno
import mmap
import os
import select
import socket
import struct
import threading
import weakref

from . import _wire as w


GONE_TEXT = "the mount's daemon has gone: open the file again when it is mounted"
GONE = 2**64 - 1  # the generation of everything that nobody vouches for any more


class NotLaneFS(OSError):
    """The file is not on a LaneFS mount that gives out device memory."""


class Session:
    """Use Session.of(fd). Requests of all threads are carried out one after the other. It ends with the daemon, or with the
    process: in one that was forked, what the parent had may be looked at, and open gives a session of its own."""

    _all = weakref.WeakValueDictionary()  # by process and socket
    _lock = threading.Lock()

    @classmethod
    def of(cls, fd, name="the file"):
        try:
            path = os.getxattr(fd, w.ATTRIBUTE)
        except OSError:
            raise NotLaneFS(errno.ENOTSUP, f"{name} is not on a LaneFS mount that gives out device memory") from None
        key = (os.getpid(), path)  # a fork has no right to its parent's connection
        with cls._lock:
            found = cls._all.get(key)
            if found is None or found.gone:  # another mount may have taken the place of the one that it was with
                found = cls(path)
                cls._all[key] = found
            return found

    def __init__(self, path):
        self._mutex = threading.Lock()
        self._dropped = collections.deque()  # handles to be released by whoever has the mutex
        self._pid = os.getpid()
        self._tag = 0
        self._event = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect(path)
        except OSError as e:
            self._socket.close()
            raise OSError(e.errno, "the daemon's socket is not reachable from here (in a container, mount its directory too)",
                          os.fsdecode(path)) from None
        body, fds = self.call(w.HELLO, w.HELLO_REQUEST.pack(w.MAGIC, w.VERSION, w.VERSION, 0), w.HELLO_REPLY, rights=2)
        self.version, runtime, self.kind, self.granule, self.pool_size, slots, writable, device, name = body
        self.runtime = w.RUNTIMES.get(runtime, "unknown")
        self.device, self.name = (t.rstrip(b"\0").decode(errors="replace") for t in (device, name))
        self.shared_by_user = bool(writable)
        self._event = fds[1]
        self._board = mmap.mmap(fds[0], 8 * slots, mmap.MAP_SHARED, mmap.PROT_READ)
        os.close(fds[0])

    def call(self, kind, request, reply=None, rights=0, pass_fds=()):
        """Makes one request; gives the reply's fields and descriptors, which are the caller's."""
        if self._pid != os.getpid():
            raise OSError("the session is that of the process that forked this one: open the file again")
        try:
            with self._mutex:
                return self._call(kind, request, reply, rights, pass_fds)
        finally:
            self._drain()

    def _call(self, kind, request, reply, rights, pass_fds):
        if self._socket is None:
            raise OSError("the session is closed")
        self._tag += 1
        tag = self._tag
        message = w.HEADER.pack(kind, 0, w.HEADER.size + len(request), tag, 0) + request
        try:
            try:
                socket.send_fds(self._socket, [message], list(pass_fds))
            except BrokenPipeError:
                if kind != w.HELLO:  # who refuses a Hello before it is read has gone, and the reply says why
                    raise
            data, got = self._receive()
        except ConnectionError as e:
            raise ConnectionError(e.errno, GONE_TEXT) from None
        try:
            if not data:
                raise ConnectionError(errno.ECONNRESET, GONE_TEXT)
            if len(data) < w.HEADER.size:
                raise ConnectionError("the daemon sent a malformed reply")
            got_kind, _, length, got_tag, status = w.HEADER.unpack_from(data)
            body = data[w.HEADER.size:]
            # A Hello may be refused before it was read, with tag 0.
            if length != len(data) or got_kind != kind | w.REPLY or got_tag != tag and (kind != w.HELLO or not status):
                raise ConnectionError("the daemon does not speak its protocol")
            if status:
                raise OSError(status, body.decode(errors="replace") or os.strerror(status))
            if len(got) != rights or len(body) != (reply.size if reply else 0):
                raise ConnectionError("the daemon sent a malformed reply")
            fields = reply.unpack(body) if reply else ()
        except BaseException:
            for fd in got:
                os.close(fd)
            raise
        return fields, got

    def _receive(self):
        fds = array.array("i")
        data, ancillary, _, _ = self._socket.recvmsg(w.MAX_MESSAGE, socket.CMSG_SPACE(16 * fds.itemsize), socket.MSG_CMSG_CLOEXEC)
        for level, kind, value in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(value[: len(value) - len(value) % fds.itemsize])
        return data, list(fds)

    @property
    def gone(self):
        """Whether the session or its daemon has ended."""
        if self._socket is None:
            return True
        p = select.poll()
        p.register(self._socket, 0)
        return bool(p.poll(0))

    def fileno(self):
        if self._socket is None:
            raise OSError("the session is closed")
        return self._socket.fileno()

    def latest(self, handle):
        """The generation that a mapping's range of its file has now; GONE when there is nobody to know."""
        return GONE if self.gone else struct.unpack_from("<Q", self._board, 8 * handle)[0]

    def wait(self, timeout=None):
        """Returns True when some mapping may no longer be current, False after timeout seconds."""
        p = select.poll()
        p.register(self._event, select.POLLIN)
        p.register(self._socket, 0)  # the daemon's end is an end of all of them
        ready = p.poll(None if timeout is None else max(0, timeout * 1000))
        w.drain(self._event)
        return bool(ready)

    def release(self, handle):
        """Gives a handle back. Requests of rings that name it have ended then."""
        try:
            self.call(w.RELEASE, w.RELEASE_REQUEST.pack(handle, 0))
        except (OSError, ValueError):
            pass  # the daemon has gone, and all handles with it; or they are another process's

    def drop(self, handle):
        """Is release for the garbage collector, which may run within a call: it waits for nothing."""
        self._dropped.append(handle)
        self._drain()

    def _drain(self):
        # Who has the mutex looks again after giving it back, so nothing is left behind.
        while self._dropped and self._pid == os.getpid() and self._mutex.acquire(blocking=False):
            try:
                while self._dropped:
                    self._call(w.RELEASE, w.RELEASE_REQUEST.pack(self._dropped.popleft(), 0), None, 0, ())
            except (OSError, ValueError, IndexError):
                pass
            finally:
                self._mutex.release()

    def close(self):
        """Ends the session and everything it gave, but for memory that is still mapped."""
        with self._mutex:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
                if self._event is not None:
                    os.close(self._event)

    def __del__(self):
        if getattr(self, "_socket", None) is not None:
            self.close()
