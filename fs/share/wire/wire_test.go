package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestSizes holds the structs against docs/SPEC.md and the C header: both count on these.
func TestSizes(t *testing.T) {
	for v, want := range map[any]int{
		&Header{}: HeaderSize, &Hello{}: 16, &HelloReply{}: 160, &Map{}: 24, &MapReply{}: 56, &Release{}: 8, &Commit{}: 32, &CommitReply{}: 8,
		&Pin{}: 8, &PinReply{}: 16, &Register{}: 24, &RegisterReply{}: 8, &Open{}: 8, &OpenReply{}: 16, &Ring{}: 8, &RingReply{}: 24, &Device{}: 72, &DeviceReply{}: 152, &Moved{}: 8, &MovedReply{}: 120,
		&Submission{}: SubmissionSize, &Completion{}: CompletionSize,
	} {
		require.Equal(t, want, binary.Size(v), "%T", v)
	}
}

// TestSubmission: the hand-written layout is the struct's.
func TestSubmission(t *testing.T) {
	s := Submission{Data: 1, Op: 2, File: 3, Memory: 4, FileOff: 5, MemOff: 6, Len: 7}
	want, err := binary.Append(nil, binary.LittleEndian, &s)
	require.NoError(t, err)
	got := make([]byte, SubmissionSize)
	EncodeSubmission(got, &s)
	require.Equal(t, want, got)
	var back Submission
	DecodeSubmission(got, &back)
	require.Equal(t, s, back)
}

func TestMessages(t *testing.T) {
	b := Encode(Header{Type: TMap, Tag: 9}, &Map{Off: 1, Len: 2, Flags: MapPrivate})
	h, body, err := Decode(b)
	require.NoError(t, err)
	require.Equal(t, Header{Type: TMap, Length: 40, Tag: 9}, h)
	var m Map
	require.NoError(t, Body(body, &m))
	require.Equal(t, Map{Off: 1, Len: 2, Flags: MapPrivate}, m)
	require.ErrorIs(t, Body(body[1:], &m), ErrMalformed)
	for n := range len(b) {
		_, _, err := Decode(b[:n])
		require.ErrorIs(t, err, ErrMalformed)
	}
	_, _, err = Decode(append(b, 0))
	require.ErrorIs(t, err, ErrMalformed)
	_, body, err = Decode(Encode(Header{Status: 5}, string(bytes.Repeat([]byte{'x'}, 5000))))
	require.NoError(t, err)
	require.Len(t, body, MaxMessage-HeaderSize, "a long text is cut")
	require.ErrorIs(t, &Error{Errno: unix.ENOSPC}, syscall.ENOSPC)
}

func FuzzDecode(f *testing.F) {
	f.Add(Encode(Header{Type: TMap, Tag: 9}, &Map{Off: 1}))
	f.Add(Encode(Header{Type: THello}, &Hello{Magic: Magic}))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, body, err := Decode(b)
		if err != nil {
			return
		}
		if int(h.Length) != len(b) || len(body) != len(b)-HeaderSize {
			t.Fatalf("a message of %d bytes: length %d, body %d", len(b), h.Length, len(body))
		}
		var m Map
		if err := Body(body, &m); err == nil {
			again := Encode(Header{Type: h.Type, Tag: h.Tag, Status: h.Status}, &m)
			if _, err := binary.Decode(again[HeaderSize:], binary.LittleEndian, &m); err != nil || m.Off != binary.LittleEndian.Uint64(body) {
				t.Fatalf("a body changes on its way")
			}
		}
	})
}

func FuzzRights(f *testing.F) {
	f.Add([]byte{16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0})
	f.Add([]byte{18, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0}) // half a descriptor
	f.Fuzz(func(t *testing.T, b []byte) {
		// Only parsed: the numbers are not descriptors of this process.
		all, _ := ParseRights(b)
		if len(all)*4 > len(b) {
			t.Fatalf("%d descriptors in %d bytes", len(all), len(b))
		}
	})
}

// FuzzRings lets a client write anything into the rings while the daemon uses them: no access outside, no endless loop.
func FuzzRings(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0}, []byte{0}, uint16(3))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, []byte{0xff}, uint16(64))
	f.Fuzz(func(t *testing.T, indexes, entries []byte, rounds uint16) {
		s, err := NewShared("fuzz", RingsSize(8), false)
		if err != nil {
			t.Skip(err)
		}
		defer s.Close()
		r, err := NewRings(s, 8)
		if err != nil {
			t.Fatal(err)
		}
		copy(s.Bytes(), indexes)
		copy(s.Bytes()[192:], entries)
		copy(s.Bytes()[ringEntries:], entries)
		var got [16]Submission
		for range int(rounds) % 64 {
			n, err := r.Take(got[:])
			if err != nil {
				return
			}
			if n > 8 {
				t.Fatalf("%d submissions out of a ring of 8", n)
			}
			room, err := r.Room()
			if err != nil {
				return
			}
			if room > r.Completions() {
				t.Fatalf("room for %d of %d completions", room, r.Completions())
			}
			for i := range min(n, int(room)) {
				r.Complete(Completion{Data: got[i].Data})
			}
		}
	})
}

// TestRings: many submissions, more than the ring holds, come back once each, whichever sides are asleep.
func TestRings(t *testing.T) {
	s, err := NewShared("test", RingsSize(16), false)
	require.NoError(t, err)
	defer s.Close()
	mine, err := MapShared(s.FD, RingsSize(16), true)
	require.NoError(t, err)
	defer mine.Close()
	daemon, err := NewRings(s, 16)
	require.NoError(t, err)
	client, err := NewRings(mine, 16)
	require.NoError(t, err)
	const total = 10000
	var wg sync.WaitGroup
	wg.Go(func() {
		var got [5]Submission
		for n := 0; n < total; runtime.Gosched() {
			k, err := daemon.Take(got[:])
			if err != nil {
				t.Error(err)
				return
			}
			var done []Completion
			for i := range k {
				done = append(done, Completion{Data: got[i].Data, Result: int64(got[i].Len)})
			}
			one := min(k, 1)
			daemon.Complete(done[:one]...)
			daemon.Complete(done[one:]...)
			n += k
		}
	})
	seen := map[uint64]bool{}
	flying := 0
	for next := 0; len(seen) < total; runtime.Gosched() {
		var subs []Submission
		for len(subs) < 7 && next+len(subs) < total && flying+len(subs) < 16 {
			subs = append(subs, Submission{Data: uint64(next + len(subs)), Op: OpRead, Len: uint64(next+len(subs)) * 3})
		}
		k, err := client.Submit(subs)
		require.NoError(t, err)
		next, flying = next+k, flying+k
		var got [9]Completion
		k, err = client.Reap(got[:])
		require.NoError(t, err)
		flying -= k
		for _, c := range got[:k] {
			require.False(t, seen[c.Data])
			require.EqualValues(t, c.Data*3, c.Result)
			seen[c.Data] = true
		}
	}
	wg.Wait()
	for _, entries := range []uint32{0, 3, MaxEntries * 2} {
		_, err := NewRings(s, entries)
		require.Error(t, err)
	}
	_, err = NewRings(s, 32)
	require.Error(t, err, "more entries than memory")
}

// TestTooManyRights: descriptors that come with a bad message are closed.
func TestTooManyRights(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(l)
	require.NoError(t, unix.Bind(l, &unix.SockaddrUnix{Name: path}))
	require.NoError(t, unix.Listen(l, 1))
	c, err := Dial(path)
	require.NoError(t, err)
	defer c.Close()
	peer, _, err := unix.Accept(l)
	require.NoError(t, err)
	defer unix.Close(peer)
	pipe := make([]int, 2)
	require.NoError(t, unix.Pipe2(pipe, unix.O_CLOEXEC))
	defer unix.Close(pipe[0])
	for _, n := range []int{MaxRights + 1, 50, 200} {
		rights := make([]int, n)
		for i := range rights {
			rights[i] = pipe[1]
		}
		require.NoError(t, unix.Sendmsg(peer, Encode(Header{Type: THello}, nil), unix.UnixRights(rights...), nil, 0))
		_, _, _, err = c.Receive()
		require.ErrorIs(t, err, ErrMalformed, n)
	}
	require.NoError(t, unix.Sendmsg(peer, make([]byte, 5000), nil, nil, 0))
	_, _, _, err = c.Receive()
	require.ErrorIs(t, err, ErrMalformed)
	require.NoError(t, unix.Sendmsg(peer, []byte("x"), unix.UnixRights(pipe[1]), nil, 0))
	_, _, _, err = c.Receive()
	require.ErrorIs(t, err, ErrMalformed)
	unix.Close(pipe[1])
	// All copies are closed, so the pipe has ended.
	n, err := unix.Read(pipe[0], make([]byte, 1))
	require.NoError(t, err)
	require.Zero(t, n)
}

// TestBoard: what the client has of the notice board cannot be written.
func TestBoard(t *testing.T) {
	s, err := NewShared("board", 8*Slots, true)
	require.NoError(t, err)
	defer s.Close()
	_, err = MapShared(s.FD, 8*Slots, true)
	require.ErrorIs(t, err, unix.EPERM)
	c, err := MapShared(s.FD, 8*Slots, false)
	require.NoError(t, err)
	defer c.Close()
	s.Word(8 * 7).Store(42)
	require.EqualValues(t, 42, c.Word(8*7).Load())
	require.ErrorIs(t, unix.Ftruncate(s.FD, 0), unix.EPERM)
	_, err = os.Stat(fmt.Sprintf("/proc/self/fd/%d", s.FD))
	require.NoError(t, err)
}
