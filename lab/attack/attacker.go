package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// attackerEnv makes the program an attacker: its seed, and the mount.
const attackerEnv = "LANEFS_ATTACKER"

// fuzzer is the state of an attacker. Its results are not checked: only the other users' are.
type fuzzer struct {
	rng     *rand.Rand
	mnt     string
	socket  string
	clients []*client
	kept    []int // descriptors that it keeps open to its end
}

// client is one of its connections, with what it received there.
type client struct {
	fd      int
	handles []uint32
	signals []int
	memory  []int
	own     []int // its memfds that are registered
	rings   []*wire.Rings
	bells   []int
}

const (
	maxClients = 40
	maxKept    = 200
)

func attacker(v string) {
	seed, mnt, _ := strings.Cut(v, "\n")
	n, _ := strconv.ParseInt(seed, 10, 64)
	signal.Ignore(unix.SIGPIPE, unix.SIGIO, unix.SIGURG)
	t := &fuzzer{rng: rand.New(rand.NewPCG(uint64(n), 3)), mnt: mnt}
	var b [256]byte
	k, err := unix.Getxattr(filepath.Join(mnt, readable), "system.lanefs.share", b[:])
	if err != nil {
		fmt.Println("no socket:", err)
		time.Sleep(time.Second)
		return
	}
	t.socket = string(b[:k])
	for done := 0; ; done++ {
		t.step()
		if done%100 == 99 {
			fmt.Println(100)
		}
		if done > 3000 && t.rng.IntN(1000) == 0 {
			os.Exit(0) // with all that is open
		}
	}
}

// step does one random action.
func (t *fuzzer) step() {
	if len(t.clients) == 0 || len(t.clients) < maxClients && t.rng.IntN(12) == 0 {
		if c := t.connect(); c != nil {
			t.clients = append(t.clients, c)
		} else {
			time.Sleep(5 * time.Millisecond)
		}
		return
	}
	i := t.rng.IntN(len(t.clients))
	c := t.clients[i]
	switch n := t.rng.IntN(100); {
	case n < 35:
		t.request(c)
	case n < 50:
		t.garbage(c)
	case n < 62:
		t.spoil(t.any(c.signals, c.bells))
	case n < 72:
		t.reseal(t.any(c.memory, c.own))
	case n < 90:
		t.write(c)
	case n < 96:
		t.useRightly(c)
	default:
		t.leave(c)
		t.clients = append(t.clients[:i], t.clients[i+1:]...)
	}
	if len(t.kept) > maxKept {
		wire.CloseAll(t.kept)
		t.kept = nil
	}
}

// any picks a descriptor of lists, -1 where there is none.
func (t *fuzzer) any(lists ...[]int) int {
	var all []int
	for _, l := range lists {
		all = append(all, l...)
	}
	if len(all) == 0 {
		return -1
	}
	return all[t.rng.IntN(len(all))]
}

func (t *fuzzer) connect() *client {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	quick := unix.NsecToTimeval((200 * time.Millisecond).Nanoseconds())
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &quick)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &quick)
	if unix.Connect(fd, &unix.SockaddrUnix{Name: t.socket}) != nil {
		unix.Close(fd)
		return nil
	}
	c := &client{fd: fd}
	if t.rng.IntN(10) > 0 {
		if _, fds := t.call(c, wire.THello, &wire.Hello{Magic: wire.Magic, Least: 1, Most: 1}); len(fds) == 2 {
			c.memory, c.signals = append(c.memory, fds[0]), append(c.signals, fds[1])
		}
	}
	return c
}

// call sends a request and receives a reply, which may be that of an earlier request.
func (t *fuzzer) call(c *client, kind wire.Type, body any, rights ...int) (reply []byte, fds []int) {
	t.send(c.fd, wire.Encode(wire.Header{Type: kind, Tag: t.rng.Uint32()}, body), rights...)
	return t.receive(c)
}

func (t *fuzzer) send(fd int, b []byte, rights ...int) {
	var oob []byte
	if len(rights) > 0 {
		oob = unix.UnixRights(rights...)
	}
	_ = unix.Sendmsg(fd, b, oob, nil, unix.MSG_NOSIGNAL)
}

func (t *fuzzer) receive(c *client) (body []byte, fds []int) {
	b, oob := make([]byte, 2048), make([]byte, unix.CmsgSpace(4*8))
	n, oobn, _, _, err := unix.Recvmsg(c.fd, b, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil || n < wire.HeaderSize {
		return nil, nil
	}
	fds, _ = wire.ParseRights(oob[:oobn])
	return b[wire.HeaderSize:n], fds
}

// leave ends a connection, in one of the ways there are.
func (t *fuzzer) leave(c *client) {
	switch t.rng.IntN(4) {
	case 0:
		_ = unix.Shutdown(c.fd, t.rng.IntN(3))
	case 1: // with requests in progress, whose replies are not received
		for range 20 {
			t.send(c.fd, t.randomMessage(), t.rights()...)
		}
	}
	unix.Close(c.fd)
	for _, r := range c.rings {
		r.Close()
	}
	lists := [][]int{c.signals, c.bells, c.memory, c.own}
	for _, l := range lists {
		if t.rng.IntN(4) == 0 {
			t.kept = append(t.kept, l...) // the memory outlives the connection
		} else {
			wire.CloseAll(l)
		}
	}
}
