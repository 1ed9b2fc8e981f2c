package share

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/residency"
	"github.com/lanefs/lanefs/fs/share/gate"
	"github.com/lanefs/lanefs/fs/share/wire"
)

// conn is the connection of one client. Only the goroutine that serves it uses its fields.
type conn struct {
	*gate.Conn
	s       *Server
	pool    *residency.Pool // of the GPU that the client chose
	board   *wire.Shared    // nil before the Hello
	event   *wire.Event     // the board has changed; nil before the Hello
	handles map[uint32]handle
	costs   map[uint32]Usage // what each handle is charged
	rings   map[*ring]bool
	gone    atomic.Bool // the client is: what its rings have taken ends early
	moved   moved       // of its rings
	count   struct{ files, memories, rings int }
	next    uint32 // where the search for a free handle begins
}

// handle is what a client names by number: a *mapping, *memory, *file or *ring.
type handle interface{ close(c *conn) }

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
		r := c.handle(h, body, rights)
		gate.CloseAll(rights)
		if r.err != nil {
			status, text := wire.Failure(r.err, fs.Errno(r.err))
			r.reply, r.status = text, status
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
	c.board, c.event = board, event
	p := c.pool
	f := p.Runtime().Facts()
	reply := &wire.HelloReply{Version: wire.Version, Runtime: runtimes[p.Runtime().Name()], Kind: uint32(p.Kind()),
		Granule: uint64(p.Granule()), PoolSize: uint64(p.Size()), Slots: wire.Slots, Device: wire.Text(f.Identity()), Name: wire.Text(f.Name), More: uint16(len(c.s.c.Pools) - 1)}
	if p.Key(1, 0, 1).Owner != 0 {
		reply.Writable = 1
	}
	return result{reply: reply, rights: []int{board.FD, theirs}, owned: []int{theirs}}
}

// cleanUp closes everything that the connection has: what requests of rings still use when they have ended, all else at once.
func (c *conn) cleanUp() {
	c.UnixConn.Close()
	c.gone.Store(true)
	c.markUnknown()
	for r := range c.rings {
		r.stop()
	}
	for n, h := range c.handles { // what no request has, for a device that does not answer makes the next wait long
		if _, ok := h.(*ring); !ok && c.forget(n) {
			c.drop(n, h)
		}
	}
	for n, h := range c.handles { // rings first: they use the others
		if r, ok := h.(*ring); ok {
			c.drop(n, r)
		}
	}
	for n, h := range c.handles {
		c.drop(n, h)
	}
	if c.board != nil {
		c.board.Close()
		c.event.Close()
	}
}

// markUnknown stores on the board that the mappings are no longer tracked. The client may live longer than the connection.
func (c *conn) markUnknown() {
	if c.board == nil {
		return
	}
	for number, h := range c.handles {
		if m, ok := h.(*mapping); ok && m.hold.Shared() {
			c.word(number).Store(wire.Unknown)
		}
	}
	c.event.Signal()
}
