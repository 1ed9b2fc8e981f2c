"""A connection to the daemon of one mount. A process has one session for each mount, and for each GPU of it that the process uses."""

import array
import atexit
import collections
import contextlib
import ctypes
import errno
import itertools
import mmap
import operator
import os
import select
import socket
import struct
import sys
import threading
import time
import weakref

from . import _wait
from . import _wire as w
from ._use import Closable, Use, inherited


GONE_TEXT = "the mount's daemon has gone: open the file again when it is mounted"
LOST_TEXT = "the program has closed the session's descriptors: open the file again"
GONE = 2**64 - 1  # the generation of all mappings after the end of the daemon


def wanted_gpu(runtime):
    """The GPU of a mount with several whose memory this thread wants: LANEFS_GPU (its place in the mount's option, from 0, or its PCI
    address), else the one that is current, else the first that the process sees."""
    named = os.environ.get("LANEFS_GPU")
    if named or runtime not in ("cuda", "hip"):
        return named or "0"
    from ._driver import Driver
    return Driver.current_address(runtime)


class NotLaneFS(OSError):
    """The file is not on a LaneFS mount with a share."""


_sockets = weakref.WeakSet()


@atexit.register
def _leave():
    """The end of the process closes what is open: a socket that the interpreter destroys before would warn that it is."""
    for s in list(_sockets):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(s))


def _identity(fd):
    """What tells a socket from all else that may get its number; None: nothing has it."""
    try:
        st = os.fstat(fd)
    except OSError:
        return None
    return st.st_dev, st.st_ino


def _end(held, identity):
    """Closes a session's descriptors: its socket, and the event if it has got one."""
    socket_, *events = held
    if _identity(socket_.fileno()) != identity:  # the program has closed them, and others may have their numbers
        socket_.detach()
        return
    socket_.close()
    for fd in events:
        os.close(fd)


def _socket_of(fd, name):
    """The path of the daemon's socket, for a descriptor of a file of its mount."""
    try:
        return w.socket_path(fd)
    except OSError as e:
        if e.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED):  # by how far the call had come. There is no fallback for that
            raise ConnectionError(errno.ECONNRESET, GONE_TEXT) from None
        raise NotLaneFS(errno.ENOTSUP, f"{name} is not on a LaneFS mount that gives out device memory") from None


def _give(session, message, fds):
    """Closes the descriptors that a message has given, and has the handle released that it gives."""
    handles = session._given(message)
    try:
        session._dropped.extend(map(_first, zip(handles, map(message.pop, (3,)))))  # as _once, and nothing comes between
    except IndexError:
        pass
    _descriptors(message, fds)
    while fds:
        os.close(fds.pop())
    session._drain()


_first = operator.itemgetter(0)


def _once(message):
    """The bytes of a message, as recvmsg gives it, for the first who asks: the handle that they give is released once. Afterwards the number may be another's."""
    try:
        message.pop(3)  # the address of who sent it, which is nobody's matter
    except IndexError:
        return b""
    return message[0]


def _descriptors(message, fds):
    """Moves a message's descriptors to fds, an array, one control message in one line: so that whoever is interrupted between two has each in one place."""
    while message and message[1]:
        level, kind, value = message[1][-1]
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(message[1].pop()[2][: len(value) - len(value) % fds.itemsize])
        else:
            message[1].pop()


class Reply:
    """What the daemon has answered. It owns the descriptors and the handle that come with it, until they are closed: what nobody has taken when an exception passes, KeyboardInterrupt for one, which
    comes between any two lines, ends with the last reference to this.

    Parameters
    ----------
    session : Session

    Attributes
    ----------
    fields : tuple
        Of the reply's body.
    fds : array of int
        The descriptors. Who takes one from it must close it.
    """

    def __init__(self, session):
        self.fields, self.fds, self._session = (), array.array("i"), session
        self._message = []  # as recvmsg gives it, which is stored here by the line that has it
        weakref.finalize(self, _give, session, self._message, self.fds).atexit = False  # the end of the process frees all

    def give(self):
        """Gives all of it back."""
        _give(self._session, self._message, self.fds)

    def release(self):
        """Has the handle released. Requests of rings that name it have ended when this returns. Repeated calls do nothing."""
        data = _once(self._message)
        if data and not self._ending():  # then other threads are no more, and what locks they had is held for ever. The end of the process frees all
            handle, = w.HANDLE.unpack_from(data, w.HEADER.size)
            try:
                self._session.release(handle)
            except BaseException:  # interrupted, perhaps before the daemon was asked
                self._session._dropped.append(handle)
                raise

    _ending = staticmethod(sys.is_finalizing)  # which is there until the end, unlike modules


class Session(Closable):
    """Use Session.of(fd). Requests of all threads are carried out one after the other. A session ends with the daemon or with the process. A
    forked child may read the parent's mappings; open makes a session of its own there.

    Parameters
    ----------
    path : bytes or str
        Of the daemon's socket.
    gpu : str, optional
        Whose memory, of a mount with several GPUs: its place in the mount's option, from 0, or its PCI address.

    Attributes
    ----------
    runtime : str
        "host", "cuda" or "hip".
    device, name : str
        PCI address (of a MIG instance the UUID) and name of the GPU.
    granule, pool_size : int
        Bytes: the unit of device memory, and how much the mount has for programs.
    gpus : int
        How many the mount has.

    Raises
    ------
    OSError
        The socket is not reachable (ENOENT, EACCES). ECONNRESET: nobody listens there. EBUSY: too many connections. ENODEV: the mount has no such GPU. EPROTONOSUPPORT: another version.
    """

    _all = weakref.WeakValueDictionary()  # by process and socket
    _opening = {}  # locks, likewise: for as long as a daemon makes it last
    _lock = threading.RLock()  # protects _opening. The handler of a signal may come in the middle
    _closing = False  # closed, perhaps in the middle of a call: _closed when that has ended

    @classmethod
    def of(cls, fd, name="the file"):
        """The process's session with the mount of a file, for the GPU that the thread wants.

        Parameters
        ----------
        fd : int
            A descriptor of any file of the mount.
        name : str
            What messages call the file.

        Returns
        -------
        Session

        Raises
        ------
        NotLaneFS
            The file is not on a LaneFS mount that gives out device memory.
        OSError
            As the constructor. ECONNRESET: the mount's daemon has ended.
        """
        path = _socket_of(fd, name)
        key = (os.getpid(), path)  # a forked child must not use its parent's connection
        with cls._lock:
            opening = cls._opening.setdefault(key, threading.RLock())
        return _wait.alone(opening, cls._of, key, fd, name)

    @classmethod
    def _of(cls, key, fd, name):
        path = key[1]
        found = cls._all.get(key)
        if found is None or found.gone:  # another mount may have the same path now
            try:
                found = cls(path)
            except OSError:
                _socket_of(fd, name)  # the daemon may have ended since it was asked for its socket
                raise
            cls._all[key] = found
        if found.gpus == 1:
            return found
        try:
            gpu = wanted_gpu(found.runtime)
        except OSError:  # no library of that GPU
            return found
        own = cls._all.get((*key, gpu))
        if own is None or own.gone:
            try:
                own = cls(path, gpu)
            except OSError as e:
                if e.errno == errno.ENODEV and not os.environ.get("LANEFS_GPU"):
                    own = found  # the process's GPU is none of the mount's: stages, and the memory of the first
                else:
                    raise
            cls._all[(*key, gpu)] = own
            if own is not found:
                own._first = found  # for the next file
        return own

    def __init__(self, path, gpu=None):
        self._mutex = threading.RLock()  # held once; of its own thread it is known then
        self._staging = threading.RLock()  # who makes the stage has it
        self._path = path
        self._dropped = collections.deque()  # handles that the holder of the mutex must release
        self._pid = os.getpid()
        self._tag = 0
        self._awaited = set()  # tags of requests whose replies have not been read
        self._event = self._stage = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        _sockets.add(self._socket)
        # Not __del__: while that runs, `of` of another thread would still find the session, and give out one that is being closed.
        self._held, self._identity = [self._socket], _identity(self._socket.fileno())
        self._free = weakref.finalize(self, _end, self._held, self._identity)
        self._free.atexit = False
        _wait.slices(self._socket)
        try:
            _wait.again(self._socket.connect, path)
        except OSError as e:
            self.close()
            if e.errno == errno.ECONNREFUSED:  # nobody listens any more
                raise ConnectionError(errno.ECONNRESET, GONE_TEXT) from None
            raise OSError(e.errno, "the daemon's socket is not reachable from here (in a container, mount its directory too)",
                          os.fsdecode(path)) from None
        hello = self.call(w.HELLO, w.HELLO_REQUEST.pack(w.MAGIC, w.VERSION, w.VERSION, 0), w.HELLO_REPLY, rights=2)
        self.version, runtime, self.kind, self.granule, self.pool_size, slots, writable, more, device, name = hello.fields
        self.gpus = 1 + more
        self.runtime = w.RUNTIMES.get(runtime, "unknown")
        self.device, self.name = (t.rstrip(b"\0").decode(errors="replace") for t in (device, name))
        self.shared_by_user = bool(writable)
        self._held.append(hello.fds.pop())
        self._event = self._held[1]
        self._board = w.mapped(hello.fds[0], 8 * slots, mmap.PROT_READ)
        hello.give()
        if gpu is not None:
            self._use(gpu)

    def _use(self, gpu):
        """Has the session give memory of one of the mount's GPUs: by its place in the mount's option, or its PCI address."""
        index, address = (int(gpu), b"") if gpu.isdigit() else (w.NO_INDEX, gpu.encode())
        try:
            (_, self.kind, self.granule, self.pool_size, device, name) = self.call(
                w.DEVICE, w.DEVICE_REQUEST.pack(index, 0, address), w.DEVICE_REPLY).fields
        except OSError:
            self.close()
            raise
        self.device, self.name = (t.rstrip(b"\0").decode(errors="replace") for t in (device, name))

    def call(self, kind, request, reply=None, rights=0, pass_fds=()):
        """Makes one request of the share's protocol (docs/SPEC.md).

        Parameters
        ----------
        kind : int
            Of the message.
        request : bytes
        reply : struct.Struct, optional
            The form of the reply's body.
        rights : int
            How many descriptors the reply has.
        pass_fds : sequence of int
            Descriptors for the daemon.

        Returns
        -------
        Reply

        Raises
        ------
        OSError
            What the daemon answers. ECONNRESET, EPIPE: it has ended. EMFILE: the process has no descriptors left for those of the reply, and what it gave is given back. EDEADLK: the handler of a signal calls in the middle of a call of the same
            thread. EPERM: the session is that of the process that forked this one. Without errno: it is closed, or the reply is malformed.
        """
        self._own()
        if self._closing:
            raise OSError("the session is closed")
        if self._mutex._is_owned():
            raise OSError(errno.EDEADLK, "called in the middle of such a call of the same thread, by the handler of a signal")
        try:
            return _wait.alone(self._mutex, self._call, kind, request, reply, rights, pass_fds)
        finally:
            self._drain()

    def _own(self):
        if self._pid != os.getpid():
            raise inherited("session")

    def _call(self, kind, request, reply, rights, pass_fds):
        if self._socket is None or self._closing:
            raise OSError("the session is closed")
        self._check()
        self._tag += 1
        tag = self._tag
        self._awaited.add(tag)
        message = w.HEADER.pack(kind, 0, w.HEADER.size + len(request), tag, 0) + request
        answer = Reply(self)
        try:
            data = self._ask(answer, kind, message, tag, pass_fds)
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
            if answer._message[2] & socket.MSG_CTRUNC:
                raise OSError(errno.EMFILE, "the process has no descriptors left for the daemon's reply")
            if len(answer.fds) != rights or len(body) != (reply.size if reply else 0):
                raise ConnectionError("the daemon sent a malformed reply")
            answer.fields = reply.unpack(body) if reply else ()
        except BaseException:
            answer.give()
            raise
        return answer

    def _ask(self, answer, kind, message, tag, pass_fds):
        """Sends a message, and returns the bytes of the reply."""
        try:
            try:
                _wait.again(socket.send_fds, self._socket, [message], list(pass_fds))
            except BrokenPipeError:
                if kind != w.HELLO:  # a daemon that refuses a Hello unread closes the socket; its reply has the reason
                    raise
            data = _wait.again(self._receive, answer)
            while self._late(data, answer, tag):
                data = _wait.again(self._receive, answer)
        except ConnectionError as e:
            raise ConnectionError(e.errno, GONE_TEXT) from None
        self._awaited.discard(tag)
        return data

    def _late(self, data, answer, tag):
        """Whether a message is the reply to an earlier request, whose caller was interrupted (KeyboardInterrupt). What it gives is given back."""
        if len(data) < w.HEADER.size:
            return False
        of = w.HEADER.unpack_from(data)[3]
        if of == tag or of not in self._awaited:
            return False
        self._awaited.discard(of)
        answer.give()
        return True

    def _given(self, message):
        """The handle that a reply gives, as recvmsg gives it, in a tuple."""
        if not message or len(message[0]) < w.HEADER.size:
            return ()
        kind, _, _, _, status = w.HEADER.unpack_from(message[0])
        if status or kind & ~w.REPLY not in (w.MAP, w.REGISTER, w.OPEN, w.RING) or len(message[0]) < w.HEADER.size + w.HANDLE.size:
            return ()
        return w.HANDLE.unpack_from(message[0], w.HEADER.size)

    def _receive(self, answer, flags=0):
        """Waits for a message, and returns its bytes: none at the end of the connection."""
        s = self._socket
        if s is None:  # the handler of a signal has closed it, in the middle of a call
            raise OSError("the session is closed")
        answer._message[:] = s.recvmsg(w.MAX_MESSAGE, socket.CMSG_SPACE(16 * answer.fds.itemsize), socket.MSG_CMSG_CLOEXEC | flags)
        _descriptors(answer._message, answer.fds)
        return answer._message[0]

    @property
    def _lost(self):
        """Whether the program has closed the session's descriptors, all that are open for one. Their numbers may be others' then."""
        s = self._socket
        return s is not None and _identity(s.fileno()) != self._identity

    def _check(self):
        if self._lost:
            raise ConnectionError(errno.ECONNRESET, LOST_TEXT)

    @property
    def gone(self):
        """bool: whether the session or its daemon has ended."""
        s = self._socket
        if s is None or self._closing or self._lost:
            return True
        p = select.poll()
        try:
            p.register(s, 0)
        except ValueError:  # another thread has closed it
            return True
        return bool(p.poll(0))

    def fileno(self):
        """The descriptor of the socket, for poll: it hangs up when the daemon ends.

        Returns
        -------
        int

        Raises
        ------
        OSError
            The session is closed.
        """
        s = self._socket
        if s is None or self._closing:
            raise OSError("the session is closed")
        return s.fileno()

    def latest(self, handle):
        """The present generation of a mapping's range of its file.

        Parameters
        ----------
        handle : int
            Of the mapping.

        Returns
        -------
        int
            2**64 - 1, which no mapping has, after the end of the daemon.
        """
        return GONE if self.gone else struct.unpack_from("<Q", self._board, 8 * handle)[0]

    def moved(self):
        """How the bytes of the session's own rings went. A File's batches count in the stage's, which `rungs` has.

        Returns
        -------
        dict
            "device", "stage", "copied": requests and bytes by kind of memory; "unreached": why the drive does not reach the GPU's, None if it does or there is none.

        Raises
        ------
        OSError
            EOPNOTSUPP: the daemon is older than this. ECONNRESET: it has ended.
        """
        fields = self.call(w.MOVED, w.MOVED_REQUEST.pack(0), w.MOVED_REPLY).fields
        why = fields[8].rstrip(b"\0").decode(errors="replace") if fields[6] & 1 else None
        return {"device": fields[0:2], "stage": fields[2:4], "copied": fields[4:6], "unreached": why}

    def stage(self, fd):
        """The process's stage for this mount.

        Parameters
        ----------
        fd : int
            Of any file of the mount. It is not looked at.

        Returns
        -------
        object
            Whose methods are this package's own matter.

        Raises
        ------
        OSError
            The C library is not here; ENOMEM, EMFILE: the mount's limits; ECONNRESET: the daemon has ended.
        """
        self._own()  # or a thread of the parent may have the lock for ever
        return self._stage or _wait.alone(self._staging, self._make_stage)

    def _make_stage(self):
        if self._stage is None:
            from ._stage import Stage
            self._stage = Stage(self)
        return self._stage

    @property
    def rungs(self):
        """dict of str to int: how requests by way of the stage went on, of 1 MiB at most: "kernel" by the GPU's kernel, "copies" by its copy engine, "host" by the CPU. And
        pieces that needed no stage: "direct", of memory that the daemon had; "legacy", of large memory that it got by legacy IPC.
        """
        return {"kernel": 0, "copies": 0, "host": 0, "direct": 0, "legacy": 0} if self._stage is None else self._stage.rungs()

    def wait(self, timeout=None):
        """Waits until a mapping may no longer be current. After the end of the daemon none is.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None: for ever.

        Returns
        -------
        bool
            False after timeout.

        Raises
        ------
        OSError
            The session is closed. ECONNRESET: the program has closed its descriptors. EPERM: it is that of the process that forked this one, which would not hear what a child takes.
        """
        self._own()
        with Use(self):
            self._check()
            p = select.poll()
            p.register(self.fileno(), 0)  # the end of the daemon makes all of them stale
            p.register(self._event, select.POLLIN)
            ready = _wait.ready(p, timeout)
            self._check()
            w.drain(self._event)
            return bool(ready)

    def release(self, handle):
        """Closes a handle. Requests of rings that name it and were submitted before have been carried out when this returns. What the daemon says is no matter.

        Parameters
        ----------
        handle : int
        """
        flags, pause = w.RELEASE_BRIEF, 0.001
        while self._busy(handle, flags):
            time.sleep(pause)  # other threads' calls go on meanwhile
            flags, pause = w.RELEASE_ASK, min(2 * pause, 0.05)

    def _busy(self, handle, flags):
        """Asks for a release, or whether it is under way."""
        try:
            self.call(w.RELEASE, w.RELEASE_REQUEST.pack(handle, flags))
        except (OSError, ValueError) as e:
            number = getattr(e, "errno", None)
            if number == errno.EDEADLK:
                self._dropped.append(handle)  # the call that is under way does it at its end
            return number == errno.EINPROGRESS  # else the daemon has ended, or the handle is of another process
        return False

    def drop(self, handle):
        """`release` for the garbage collector, which may run during a call. It does not block.

        Parameters
        ----------
        handle : int
        """
        self._dropped.append(handle)
        self._drain()

    def _drain(self):
        # The holder of the mutex checks again after it has unlocked it, so no handle is left.
        self._post_dropped()
        if self._closing and self._socket is not None and not self._mutex._is_owned():
            self._leave()

    def _post_dropped(self):
        while self._dropped and self._pid == os.getpid() and not self._mutex._is_owned() and self._mutex.acquire(blocking=False):
            try:
                if self._socket is None or self._lost:
                    self._dropped.clear()
                while self._dropped:
                    if not self._post():
                        return
                self._take_late()
            except IndexError:
                pass
            except (OSError, ValueError):  # the daemon has ended, or the connection, and all handles with it
                self._dropped.clear()
            finally:
                self._mutex.release()

    def _post(self):
        """Has the daemon release what was dropped first, and no more is dropped then: nothing comes between, as the calls are C's, one within the other. It waits for nothing, for a daemon may be stopped, and what the handler of a signal raises is lost where the garbage collector runs. False:
        there is no room for another request now."""
        self._tag += 1
        request = w.RELEASE_REQUEST.pack(self._dropped[0], w.RELEASE_BRIEF)
        message = w.HEADER.pack(w.RELEASE, 0, w.HEADER.size + len(request), self._tag, 0) + request
        self._awaited.add(self._tag)
        try:
            any(map(collections.deque.popleft, itertools.compress((self._dropped,), map(self._socket.sendmsg, ([message],), ([],), (socket.MSG_DONTWAIT,)))))
        except BlockingIOError:
            self._awaited.discard(self._tag)
            return False
        return True

    def _take_late(self):
        """Takes the replies that are there to requests for which nobody waits."""
        while self._awaited and self._socket is not None:
            answer = Reply(self)
            try:
                data = self._receive(answer, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if not data:
                return
            if not self._late(data, answer, 0):
                answer.give()

    def close(self):
        """Ends the session and all its objects, except memory that is still mapped. In the middle of another thread's call it does so when that has ended, and does not wait: calls that come later
        find it closed at once. Repeated calls do nothing.

        Raises
        ------
        OSError
            As close(2).
        """
        if self._pid != os.getpid():  # in a child the lock may be held for ever
            self._socket = None
            self._free()
            return
        self._closing = True
        self._leave()

    def _leave(self):
        """Ends a session that is closed, if no call is under way. Who makes one does this after it, so nothing is left."""
        if self._pid == os.getpid() and self._mutex.acquire(blocking=False):
            try:
                self._shut()
            finally:
                self._mutex.release()
            self._close()

    def _shut(self):
        s, self._socket = self._socket, None
        if s is not None and _identity(s.fileno()) == self._identity:
            with contextlib.suppress(OSError):  # the daemon was faster
                s.shutdown(socket.SHUT_RDWR)  # for who waits for the end of the daemon

    def _end(self):
        self._free()


def _anew():
    """In a child: a thread of the parent may have held the locks, and does not exist here."""
    Session._lock, Session._opening = threading.RLock(), {}


os.register_at_fork(after_in_child=_anew)
