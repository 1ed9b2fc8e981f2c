package share

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/residency"
	"github.com/lanefs/lanefs/fs/share/gate"
	"github.com/lanefs/lanefs/fs/share/wire"
)

// conn is the connection of one client. The goroutine that serves it does its requests one by one. That the client goes while one is under way the watch sees:
// then letGo ends, beside that goroutine, what the request does not use.
type conn struct {
	*gate.Conn
	s      *Server
	pool   *residency.Pool   // of the GPU that the client chose
	board  *wire.Shared      // nil before the Hello; set, forgotten and closed with mu
	event  *wire.Event       // the board has changed; like board
	tenant *tenant           // what places its rings have
	parts  *residency.Tenant // what parts of the stage it has
	watch  *wire.Watch
	moved  moved          // of its rings
	next   uint32         // where the search for a free handle begins
	gone   atomic.Bool    // the client has gone: what it waits for, and what its rings have taken, ends early
	left   chan struct{}  // closed with that
	ending sync.WaitGroup // handles that are being closed beside the requests; more with mu held only, until closed is set

	// mu protects the fields below. ring.mu is taken under it. Nothing is waited for with it.
	mu      sync.Mutex
	handles map[uint32]owned
	// releasing has the numbers of handles that are being released, which nothing else gets meanwhile. Closed when that is done.
	releasing    map[uint32]chan struct{}
	rings        map[*ring]bool // until they are closed, also those that are no handles any more
	count        [kinds]int     // of handles, and of those that are being released
	named        uint32         // the handle that the request under way uses; 0: none
	now          underWay
	given        Usage // of connCost, what was given back; protected by mu
	shut, closed bool
}

// underWay is the request that is being carried out. Its reply is sent before its end if the client has gone: the gate keeps the client's socket and file until then,
// by which the mount is busy.
type underWay struct {
	wire.Header
	is      bool
	hasFile bool // it needs the gate to keep the file no more
	replied bool
}

// handle is what a client names by number: a *mapping, *memory, *file or *ring. close may wait for the device.
type handle interface {
	kind() kind
	close(c *conn)
}

type kind int

const (
	mappingKind kind = iota
	memoryKind
	fileKind
	ringKind
	kinds
)

// owned is a handle and what is charged for it.
type owned struct {
	handle
	cost Usage
}

func newConn(s *Server, g *gate.Conn) *conn {
	c := &conn{Conn: g, s: s, pool: s.c.Pools[0], parts: residency.NewTenant(g.UID), left: make(chan struct{}), handles: map[uint32]owned{}, releasing: map[uint32]chan struct{}{}, rings: map[*ring]bool{}}
	c.watch = wire.NewWatch(g.UnixConn, unix.POLLRDHUP, c.letGo)
	return c
}

// ends says that the client's transfers are to end early.
func (c *conn) ends() ends { return ends{&c.s.ending, &c.gone, c.left, c.parts} }

// serve carries out requests until the client disconnects.
func (c *conn) serve() {
	defer c.cleanUp()
	c.SetReadDeadline(time.Now().Add(helloTimeout))
	for {
		h, body, rights, err := c.Receive()
		if err != nil {
			if errors.Is(err, wire.ErrMalformed) {
				c.s.log(slog.LevelWarn, c.UID, "share: a client was disconnected", "error", err)
			}
			return
		}
		c.begin(h, rights)
		c.watch.Begin()
		r := c.handle(h, body, rights)
		c.watch.End()
		replied := c.over()
		gate.CloseAll(rights)
		if r.err != nil {
			status, text := wire.Failure(r.err, fs.Errno(r.err))
			r.reply, r.status = text, status
		}
		if replied {
			wire.CloseAll(r.owned)
			return
		}
		c.SetWriteDeadline(time.Now().Add(replyTimeout))
		err = c.Send(wire.Encode(wire.Header{Type: h.Type | wire.Reply, Tag: h.Tag, Status: r.status}, r.reply), r.rights...)
		wire.CloseAll(r.owned)
		if err != nil {
			return
		}
		if c.board != nil {
			c.SetReadDeadline(time.Time{})
		}
	}
}

// result is the content of a reply.
type result struct {
	reply  any
	err    error
	status int32
	rights []int // descriptors to pass
	owned  []int // those of rights that are closed after the reply
}

func fail(err error) result { return result{err: err} }

// handle carries out one request. The caller closes the rights afterwards.
func (c *conn) handle(h wire.Header, body []byte, rights []gate.Right) (r result) {
	defer func() {
		if p := recover(); p != nil { // a bug must not end the mount
			c.s.log(slog.LevelError, c.UID, "share: a request panicked", "request", h.Type, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			r = fail(fmt.Errorf("the daemon failed: %v", p))
		}
	}()
	if (c.board == nil) != (h.Type == wire.THello) {
		return fail(fmt.Errorf("the first message, and no other, is a Hello: %w", unix.EPROTO))
	}
	request, ok := requests[h.Type]
	if !ok {
		return fail(fmt.Errorf("requests of type %#x do not exist in version %d: %w", uint16(h.Type), wire.Version, unix.EOPNOTSUPP))
	}
	if len(rights) != request.rights {
		return fail(fmt.Errorf("%d descriptors came with the request, want %d: %w", len(rights), request.rights, unix.EPROTO))
	}
	return request.do(c, body, rights)
}

// request is the number of descriptors that a type of request carries, and the method that carries it out.
type request struct {
	rights int
	do     func(c *conn, body []byte, rights []gate.Right) result
}

var requests = map[wire.Type]request{
	wire.THello:    {0, with((*conn).hello)},
	wire.TMap:      {1, with((*conn).mapFile)},
	wire.TRelease:  {0, with((*conn).release)},
	wire.TCommit:   {1, with((*conn).commit)},
	wire.TPin:      {1, with((*conn).pin)},
	wire.TRegister: {1, with((*conn).register)},
	wire.TOpen:     {1, with((*conn).open)},
	wire.TRing:     {0, with((*conn).ring)},
	wire.TMoved:    {0, with((*conn).howMoved)},
	wire.TDevice:   {0, with((*conn).device)},
}

// with returns a function that decodes the body and calls f.
func with[T any](f func(*conn, *T, []gate.Right) result) func(*conn, []byte, []gate.Right) result {
	return func(c *conn, body []byte, rights []gate.Right) result {
		var v T
		if err := wire.Body(body, &v); err != nil {
			return fail(fmt.Errorf("%w: %w", err, unix.EPROTO))
		}
		return f(c, &v, rights)
	}
}

var runtimes = map[string]wire.Runtime{"host": wire.RuntimeHost, "cuda": wire.RuntimeCUDA, "hip": wire.RuntimeHIP}

func (c *conn) hello(q *wire.Hello, _ []gate.Right) result {
	if q.Magic != wire.Magic {
		return fail(fmt.Errorf("this is no client of LaneFS: %w", unix.EPROTO))
	}
	if q.Least > wire.Version || q.Most < wire.Version {
		return fail(fmt.Errorf("the client speaks versions %d to %d of the protocol, this daemon %d: %w", q.Least, q.Most, wire.Version, unix.EPROTONOSUPPORT))
	}
	board, err := wire.NewShared("lanefs-notices", 8*wire.Slots, true)
	if err != nil {
		return fail(err)
	}
	event, theirs, err := wire.NewEvent()
	if err != nil {
		board.Close()
		return fail(err)
	}
	send, err := unix.FcntlInt(uintptr(board.FD), unix.F_DUPFD_CLOEXEC, 0) // letGo may close board's own
	if err != nil {
		board.Close()
		event.Close()
		wire.CloseAll([]int{theirs})
		return fail(fmt.Errorf("the notice board's descriptor: %w", err))
	}
	c.mu.Lock()
	c.board, c.event = board, event
	c.mu.Unlock()
	p := c.pool
	f := p.Runtime().Facts()
	reply := &wire.HelloReply{Version: wire.Version, Runtime: runtimes[p.Runtime().Name()], Kind: uint32(p.Kind()),
		Granule: uint64(p.Granule()), PoolSize: uint64(p.Size()), Slots: wire.Slots, Device: wire.Text(f.Identity()), Name: wire.Text(f.Name), More: uint16(len(c.s.c.Pools) - 1)}
	if p.Key(1, 0, 1).Owner != 0 {
		reply.Writable = 1
	}
	return result{reply: reply, rights: []int{send, theirs}, owned: []int{send, theirs}}
}

// letGo ends all that nothing uses: neither the request under way nor those of rings, for which a device that does not answer may make the wait long. What
// they use ends when they have. It is called when the client has gone, and does not wait.
func (c *conn) letGo() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	if !c.gone.Swap(true) {
		close(c.left)
	}
	c.forgetBoardLocked()
	for number, o := range c.handles {
		if r, ok := o.handle.(*ring); ok {
			r.stop()
			c.takeLocked(number)
			c.ending.Go(func() {
				c.end(o)
				c.mu.Lock()
				defer c.mu.Unlock()
				c.endUnusedLocked() // what its requests have used
			})
		}
	}
	c.endUnusedLocked()
	c.replyEarlyLocked()
}

// begin, tookFile and over follow a request.
func (c *conn) begin(h wire.Header, rights []gate.Right) {
	c.mu.Lock()
	defer c.mu.Unlock()
	needs := slices.ContainsFunc(rights, func(r gate.Right) bool { return r.Sort == gate.Own })
	c.now = underWay{Header: h, is: true, hasFile: !needs}
}

func (c *conn) tookFile() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.hasFile = true
	if c.gone.Load() {
		c.replyEarlyLocked()
	}
}

// over says whether the reply was sent.
func (c *conn) over() (replied bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.is, c.named = false, 0
	return c.now.replied
}

// replyEarlyLocked answers the request under way, of a client that has gone.
func (c *conn) replyEarlyLocked() {
	if !c.now.is || !c.now.hasFile || c.now.replied {
		return
	}
	c.now.replied = true
	h := c.now.Header
	c.ending.Go(func() {
		status, text := wire.Failure(errEnding, unix.ESHUTDOWN)
		c.SetWriteDeadline(time.Now().Add(replyTimeout))
		_ = c.Send(wire.Encode(wire.Header{Type: h.Type | wire.Reply, Tag: h.Tag, Status: status}, text)) // if it is not sent the gate has gone, too
		c.closeSocket()
	})
}

// endUnusedLocked ends what no request uses. A file that was deleted waits for the device: memory does not wait for that.
func (c *conn) endUnusedLocked() {
	var memory, files []owned
	for number, o := range c.handles {
		switch {
		case o.kind() == ringKind || number == c.named || !c.forgetLocked(number):
		case o.kind() == fileKind:
			files = append(files, c.takeLocked(number))
		default:
			memory = append(memory, c.takeLocked(number))
		}
	}
	for _, all := range [][]owned{memory, files} {
		if len(all) > 0 {
			c.ending.Go(func() {
				for _, o := range all {
					c.end(o)
				}
			})
		}
	}
}

// cleanUp closes everything that the connection has. No request is under way.
func (c *conn) cleanUp() {
	c.closeSocket()
	c.letGo()
	c.ending.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.board != nil {
		c.board.Close()
	}
}

// closeSocket closes the connection itself, and gives back what that is charged.
func (c *conn) closeSocket() {
	c.UnixConn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.shut {
		c.shut = true
		c.giveLocked(Usage{Descriptors: 1})
	}
}

// giveLocked gives a part of connCost back before the end of the connection, which counts as one until then: what a client that has gone waits for takes a thread.
func (c *conn) giveLocked(u Usage) {
	c.given = c.given.plus(u, 1)
	c.s.ledger.give(c.UID, u)
}

// forgetBoardLocked stores on the board that the mappings are no longer tracked, for the client may live longer than the connection, and gives board and event back.
// The request under way and the pool may write to the board yet.
func (c *conn) forgetBoardLocked() {
	if c.board == nil || c.board.FD < 0 {
		return
	}
	for number, o := range c.handles {
		if m, ok := o.handle.(*mapping); ok && m.hold.Shared() {
			c.word(number).Store(wire.Unknown)
		}
	}
	c.event.Signal()
	c.event.Close()
	if c.board.Forget() {
		c.giveLocked(Usage{Descriptors: 2, Shared: 8 * wire.Slots})
	}
}
