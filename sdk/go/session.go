package lanefs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/gpu"
)

// ErrNotLaneFS says that a file is not on a LaneFS mount that gives out device memory.
var ErrNotLaneFS = errors.New("not on a LaneFS mount with device memory")

// Session is a connection. Its methods may be called from any goroutine; requests are carried out one after the other.
type Session struct {
	facts Facts
	board *wire.Shared
	event *os.File // the board has changed
	gone  watch    // the connection's end

	mu   sync.Mutex // one request at a time
	conn *wire.Conn // protected by mu
	tag  uint32     // protected by mu
}

// Facts is what the daemon says of itself.
type Facts struct {
	Runtime  string // host, cuda, hip
	Device   string // its PCI address, empty for the host runtime
	Name     string
	Kind     gpu.ExportKind // of the memory that it passes
	Granule  int64
	PoolSize int64
	// Writable says that whoever maps shared memory could write to it, so it is shared by programs of one user only.
	Writable bool
}

var runtimes = map[wire.Runtime]string{wire.RuntimeHost: "host", wire.RuntimeCUDA: "cuda", wire.RuntimeHIP: "hip"}

// Connect makes a session with the daemon of the mount that f is on. ErrNotLaneFS: there is none.
func Connect(f *os.File) (*Session, error) {
	path, err := socketOf(f)
	if err != nil {
		return nil, err
	}
	conn, err := wire.Dial(path)
	if err != nil {
		return nil, fmt.Errorf("%q: the daemon's socket is not reachable from here (in a container, mount its directory too): %w", f.Name(), err)
	}
	s := &Session{conn: conn}
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
	if err != nil {
		return "", fmt.Errorf("%q: %w", f.Name(), ErrNotLaneFS)
	}
	return string(b[:n]), nil
}

// control runs fn on f's descriptor without changing how f waits.
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
		Granule: int64(r.Granule), PoolSize: int64(r.PoolSize), Writable: r.Writable != 0}
	return nil
}

// Facts is what the daemon said of itself.
func (s *Session) Facts() Facts { return s.facts }

// call makes one request, passing f's descriptor if there is an f.
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
	if s.conn == nil {
		return nil, os.ErrClosed
	}
	s.tag++
	got, err := s.conn.Call(t, s.tag, request, reply, want, pass...)
	var refused *wire.Error
	if err != nil && !errors.As(err, &refused) {
		err = fmt.Errorf("the mount's daemon has gone, or does not speak its protocol: %w", err)
	}
	return got, err
}

// Wait returns when some buffer of the session may no longer be current, or after timeout with os.ErrDeadlineExceeded. When the
// daemon has gone none is.
func (s *Session) Wait(timeout time.Duration) error {
	if err := s.event.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	// Afterwards, or the deadline above might replace this one.
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

// Pin has the whole of f read into device memory and kept there, or lets it go; it returns its size. Only root and who
// mounted may. Where memory is shared by programs of one user only, owner says of which; -1 is the caller.
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

func (s *Session) release(handle uint32) error {
	_, err := s.call(wire.TRelease, &wire.Release{Handle: handle}, nil, 0, nil)
	return err
}

// Close ends the session and all it gave. Bytes of its buffers must not be touched any more.
func (s *Session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return os.ErrClosed
	}
	s.gone.end()
	err := s.conn.Close()
	s.conn = nil
	if s.event != nil {
		s.event.Close()
	}
	if s.board != nil {
		s.board.Close()
	}
	return err
}
