package lanefs

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/gpu"
)

// ErrNotLaneFS says that a file is not on a LaneFS mount with a share.
var ErrNotLaneFS = errors.New("not on a LaneFS mount with device memory")

// Session is a connection to the daemon of a mount. Its methods may be called from any goroutine; requests are carried out one after the other.
type Session struct {
	facts Facts
	board *wire.Shared
	event *os.File // signals changes of the board
	gone  watch    // the connection's end

	socket *net.UnixConn // conn's: closing it ends a request that waits
	closed atomic.Bool

	mu   sync.Mutex // one request at a time
	conn *wire.Conn // protected by mu
	tag  uint32     // protected by mu
}

// Facts are facts of the daemon. Granule and PoolSize are bytes.
type Facts struct {
	Runtime  string // host, cuda, hip
	Device   string // its PCI address, empty for the host runtime
	Name     string
	Kind     gpu.ExportKind // of the memory that it exports
	Granule  int64
	PoolSize int64
	// Writable says that programs could write to shared memory, so that only programs of one user share it.
	Writable bool
	// GPUs is how many the mount has. The other facts are of the session's: the first, unless Use chose another.
	GPUs int
}

var runtimes = map[wire.Runtime]string{wire.RuntimeHost: "host", wire.RuntimeCUDA: "cuda", wire.RuntimeHIP: "hip"}

// Connect connects to the daemon of the mount that f is on. The error is ErrNotLaneFS if f is not on a LaneFS mount with a share, ErrGone if the
// mount's daemon has ended.
func Connect(f *os.File) (*Session, error) {
	path, err := socketOf(f)
	if err != nil {
		return nil, err
	}
	conn, err := wire.Dial(path)
	if err != nil {
		// Nobody listens any more; or the daemon has ended since it was asked for its socket.
		gone := errors.Is(err, unix.ECONNREFUSED)
		if !gone {
			_, again := socketOf(f)
			gone = errors.Is(again, ErrGone)
		}
		if gone {
			return nil, fmt.Errorf("%q: %w", f.Name(), ErrGone)
		}
		return nil, fmt.Errorf("%q: the daemon's socket is not reachable from here (in a container, mount its directory too): %w", f.Name(), err)
	}
	s := &Session{socket: conn.UnixConn, conn: conn}
	if err = s.hello(); err == nil {
		err = s.gone.begin(conn.UnixConn)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("%q: %w", f.Name(), err)
	}
	return s, nil
}

func socketOf(f *os.File) (string, error) {
	var b [256]byte
	var n int
	err := control(f, func(fd int) (err error) { n, err = unix.Fgetxattr(fd, wire.ShareAttr, b[:]); return err })
	switch {
	case errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.ECANCELED): // by how far the call had come
		return "", fmt.Errorf("%q: %w", f.Name(), ErrGone)
	case err != nil:
		return "", fmt.Errorf("%q: %w", f.Name(), ErrNotLaneFS)
	}
	return string(b[:n]), nil
}

// control calls fn with f's descriptor. It does not make f blocking, as f.Fd would.
func control(f *os.File, fn func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if err1 := raw.Control(func(fd uintptr) { err = fn(int(fd)) }); err1 != nil {
		return err1
	}
	return err
}

func (s *Session) hello() error {
	var r wire.HelloReply
	rights, err := s.call(wire.THello, &wire.Hello{Magic: wire.Magic, Least: wire.Version, Most: wire.Version}, &r, 2, nil)
	if err != nil {
		return err
	}
	defer wire.CloseAll(rights[:1])
	if s.event = os.NewFile(uintptr(rights[1]), "notices"); s.event == nil {
		return errors.New("the daemon sent no event")
	}
	if s.board, err = wire.MapShared(rights[0], 8*int(r.Slots), false); err != nil {
		return err
	}
	s.facts = Facts{Runtime: runtimes[r.Runtime], Device: wire.String(r.Device), Name: wire.String(r.Name), Kind: gpu.ExportKind(r.Kind),
		Granule: int64(r.Granule), PoolSize: int64(r.PoolSize), Writable: r.Writable != 0, GPUs: 1 + int(r.More)}
	return nil
}

// Facts returns the facts of the daemon.
func (s *Session) Facts() Facts { return s.facts }

// Use chooses the GPU whose memory the session gives: by its PCI address, or by its place in the mount's option, a number from 0. It comes
// before anything is mapped, registered or opened. ENODEV: the mount has no such GPU.
func (s *Session) Use(device string) error {
	q := &wire.Device{Index: wire.NoIndex, Device: wire.Text(device)}
	if n, err := strconv.ParseUint(device, 10, 31); err == nil {
		q.Index = uint32(n)
	}
	var r wire.DeviceReply
	if _, err := s.call(wire.TDevice, q, &r, 0, nil); err != nil {
		return err
	}
	s.facts.Device, s.facts.Name, s.facts.Kind = wire.String(r.Device), wire.String(r.Name), gpu.ExportKind(r.Kind)
	s.facts.Granule, s.facts.PoolSize = int64(r.Granule), int64(r.PoolSize)
	return nil
}

// call makes one request. It passes f's descriptor if f is not nil.
func (s *Session) call(t wire.Type, request, reply any, want int, f *os.File) (rights []int, err error) {
	if f == nil {
		return s.callWith(t, request, reply, want)
	}
	err1 := control(f, func(fd int) error {
		rights, err = s.callWith(t, request, reply, want, fd)
		return nil
	})
	return rights, errors.Join(err, err1)
}

func (s *Session) callWith(t wire.Type, request, reply any, want int, pass ...int) ([]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil || s.closed.Load() {
		return nil, os.ErrClosed
	}
	s.tag++
	got, err := s.conn.Call(t, s.tag, request, reply, want, pass...)
	var refused *wire.Error
	if err != nil && s.closed.Load() && !errors.As(err, &refused) {
		return nil, os.ErrClosed
	}
	if err != nil && !errors.As(err, &refused) && !errors.Is(err, wire.ErrNoDescriptors) {
		err = fmt.Errorf("the mount's daemon has gone, or does not speak its protocol: %w", err)
	}
	return got, err
}

// Wait returns when a buffer of the session may no longer be current, or after timeout with os.ErrDeadlineExceeded. After the end of the
// daemon it returns at once.
func (s *Session) Wait(timeout time.Duration) error {
	if err := s.event.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	// After SetReadDeadline above, which would replace this deadline.
	defer s.gone.then(func() { s.event.SetReadDeadline(time.Unix(1, 0)) })()
	raw, err := s.event.SyscallConn()
	if err == nil {
		err = wire.WaitEvent(raw)
	}
	if err != nil && (s.gone.over() || errors.Is(err, io.EOF)) {
		return nil
	}
	return err
}

// Pin reads the whole of f into device memory and keeps it there, or with on false ends that. It returns the size of f. Only root and the user
// that mounted may. If memory is shared by programs of one user only (Facts.Writable), owner is that user; -1 is the caller.
func (s *Session) Pin(f *os.File, on bool, owner int64) (int64, error) {
	q := &wire.Pin{Owner: wire.NoOwner}
	if owner >= 0 {
		q.Owner = uint32(owner)
	}
	if on {
		q.On = 1
	}
	var r wire.PinReply
	_, err := s.call(wire.TPin, q, &r, 0, f)
	return int64(r.Bytes), err
}

// release returns when the requests of rings that name the handle have ended. The session's other requests do not wait for that.
func (s *Session) release(handle uint32) error {
	flags, pause := wire.ReleaseBrief, time.Millisecond
	for {
		_, err := s.call(wire.TRelease, &wire.Release{Handle: handle, Flags: flags}, nil, 0, nil)
		if !errors.Is(err, unix.EINPROGRESS) {
			return err
		}
		time.Sleep(pause)
		flags, pause = wire.ReleaseAsk, min(2*pause, 50*time.Millisecond)
	}
}

// Close ends the session and all its objects. A request of another goroutine that waits for the device ends with os.ErrClosed. The Bytes of its buffers must not be accessed afterwards.
func (s *Session) Close() error {
	if s.closed.Swap(true) {
		return os.ErrClosed
	}
	s.gone.end()
	err := s.socket.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = nil
	if s.event != nil {
		s.event.Close()
	}
	if s.board != nil {
		s.board.Close()
	}
	return err
}
