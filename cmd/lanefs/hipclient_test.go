package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/hip"
	lanefs "github.com/lanefs/lanefs/sdk/go"
	"github.com/lanefs/lanefs/sdk/go/device"
)

// The test binary is a program with files in device memory too; the value is a file of a mount.
const beClient = "LANEFS_TEST_CLIENT"

// hipClient is such a program, with HIP.
type hipClient struct {
	f       *os.File
	session *lanefs.Session
	rt      *hip.Runtime
	stream  gpu.Stream
	host    gpu.Memory // as long as the file
	buffer  *lanefs.Buffer
	at      gpu.Addr // of the buffer
	content []byte   // of the file, when the client began
}

// client does what it is told, a line each, and answers with a line.
func client(path string, in io.Reader, out io.Writer) (err error) {
	c := &hipClient{}
	if c.f, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		return err
	}
	defer c.f.Close()
	if c.content, err = os.ReadFile(path); err != nil {
		return err
	}
	if c.session, err = lanefs.Connect(c.f); err != nil {
		return err
	}
	if c.rt, err = hip.Open(hip.Options{}); err != nil {
		return err
	}
	if c.stream, err = c.rt.NewStream(); err != nil {
		return err
	}
	if c.host, err = c.rt.Alloc(gpu.HostMapped, int64(len(c.content))); err != nil {
		return err
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		answer, err := map[string]func() (string, error){
			"map": c.mapFile, "parts": c.mapParts, "scribble": c.scribble, "look": c.look, "ring": c.ring, "stage": c.stage, "close under a copy": c.closeUnderCopy,
		}[lines.Text()]()
		if err != nil {
			return fmt.Errorf("%s: %w", lines.Text(), err)
		}
		fmt.Fprintln(out, answer)
	}
	err = c.buffer.Close()
	return errors.Join(err, c.host.Close(), c.stream.Close(), c.session.Close(), c.rt.Close()) // which says what is still open
}

// copy moves n bytes from or to the start of the pinned memory.
func (c *hipClient) copy(dst, src gpu.Addr, n int64) error {
	return errors.Join(c.stream.Copy(dst, src, n), c.stream.Wait(time.Minute))
}

func (c *hipClient) mapFile() (string, error) {
	var err error
	if c.buffer, err = c.session.Map(c.f, 0, 0); err != nil {
		return "", err
	}
	if c.at, err = c.buffer.Import(c.rt); err != nil {
		return "", err
	}
	if err := c.copy(c.host.Addr(), c.at, c.buffer.Len()); err != nil {
		return "", err
	}
	if !bytes.Equal(c.content, c.host.Host()) {
		return "", errors.New("device memory has other bytes than the file")
	}
	e, _ := c.buffer.Export()
	return fmt.Sprintf("%s, %d bytes", e.Kind, c.buffer.Len()), nil
}

// mapParts maps parts of the file: bytes from odd offsets, which the daemon itself puts there, and as much as fills its memory, which comes
// straight from the controller.
func (c *hipClient) mapParts() (string, error) {
	for _, part := range []struct{ off, n int64 }{{1, 1}, {4095, 1}, {0, 2 << 20}, {int64(len(c.content)) - 1, 1}} {
		b, err := c.session.Map(c.f, part.off, part.n)
		if err != nil {
			return "", err
		}
		at, err := b.Import(c.rt)
		if err != nil {
			return "", err
		}
		if err := c.copy(c.host.Addr(), at, part.n); err != nil {
			return "", err
		}
		if !bytes.Equal(c.host.Host()[:part.n], c.content[part.off:][:part.n]) {
			return "", fmt.Errorf("%d bytes at %d are others in device memory", part.n, part.off)
		}
		if err := b.Close(); err != nil {
			return "", err
		}
	}
	return "ok", nil
}

// scribble does what no program should, and no GPU keeps one from.
func (c *hipClient) scribble() (string, error) {
	c.host.Host()[0] = 77
	if err := c.copy(c.at+1000, c.host.Addr(), 1); err != nil {
		return "", err
	}
	return c.look()
}

func (c *hipClient) look() (string, error) {
	err := c.copy(c.host.Addr(), c.at+1000, 1)
	return fmt.Sprintf("byte %d", c.host.Host()[0]), err
}

// Where ring moves bytes: nothing is aligned to anything.
const (
	ringFrom, ringAt, ringTo, ringLen = 12345, 777, 2<<20 + 1, 3<<20 + 4567
)

// ringed is what ring makes of a file.
func ringed(content []byte) []byte {
	b := bytes.Clone(content)
	copy(b[ringTo:], content[ringFrom:ringFrom+ringLen])
	return b
}

// stage reads many pieces into memory that nobody exported, by the C library and its kernel, and writes them back where they were, on a stream.
func (c *hipClient) stage() (string, error) {
	own, err := c.rt.Alloc(gpu.DevicePlain, int64(len(c.content)))
	if err != nil {
		return "", err
	}
	stage, err := device.New(c.f, 2<<20) // so many pieces in each part that a kernel has them, also when one was late
	if err != nil {
		return "", err
	}
	file, err := stage.Open(c.f)
	if err != nil {
		return "", err
	}
	var pieces []lanefs.Piece
	for at := int64(0); at < own.Size(); at += 999 {
		pieces = append(pieces, lanefs.Piece{Off: at, MemOff: at, Len: min(999, own.Size()-at)})
	}
	slices.Reverse(pieces) // no piece goes on where the one before it ends, so there is no copy of many
	stream := new(uintptr)
	if err := callHIP("hipStreamCreateWithFlags", uintptr(unsafe.Pointer(stream)), 1); err != nil {
		return "", err
	}
	now, err := os.ReadFile(c.f.Name())
	if err != nil {
		return "", err
	}
	at, size := uintptr(own.Addr()), own.Size()
	for _, read := range []func() error{
		func() error {
			_, err := file.Read(at, size, pieces, *stream)
			return errors.Join(err, callHIP("hipStreamSynchronize", *stream))
		},
		func() error {
			b, err := file.ReadAsync(at, size, pieces, *stream)
			if err := errors.Join(err, callHIP("hipStreamSynchronize", *stream)); err != nil {
				return err
			}
			_, err = b.Result()
			return err
		},
	} {
		before := stage.Ways()
		clear(c.host.Host())
		if err := errors.Join(c.copy(own.Addr(), c.host.Addr(), size), read(), c.copy(c.host.Addr(), own.Addr(), size)); err != nil {
			return "", err
		}
		if !bytes.Equal(now, c.host.Host()) {
			return "", errors.New("a stage's pieces have other bytes than the file")
		}
		if stage.Ways().Kernel == before.Kernel {
			return "", fmt.Errorf("no kernel: %+v", stage.Ways())
		}
	}
	if _, err := file.Write(at, size, pieces, *stream); err != nil {
		return "", err
	}
	return "ok", errors.Join(file.Close(), stage.Close(), callHIP("hipStreamDestroy", *stream), own.Close())
}

// callHIP calls the library that hip.Open has opened, as a program that has streams of its own does. Which device is current is a thread's, and
// Go may run every call on another one.
//
//go:uintptrescapes
func callHIP(name string, args ...uintptr) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, c := range []struct {
		name string
		args []uintptr
	}{{"hipSetDevice", []uintptr{0}}, {name, args}} {
		at, err := purego.Dlsym(purego.RTLD_DEFAULT, c.name)
		if err != nil {
			return err
		}
		if code, _, _ := purego.SyscallN(at, c.args...); int32(code) != 0 {
			return fmt.Errorf("%s: error %d", c.name, int32(code))
		}
	}
	return nil
}

// ring reads a range of the file into device memory of the program's own, and writes it to another place of the file.
func (c *hipClient) ring() (string, error) {
	kind := gpu.DeviceVMM
	if c.rt.Facts().Granularity == 0 {
		kind = gpu.DevicePlain
	}
	own, err := c.rt.Alloc(kind, 8<<20)
	if err != nil {
		return "", err
	}
	e, err := own.Export(c.session.Facts().Kind)
	if err != nil {
		return "", err
	}
	memory, err := c.session.Register(e)
	unix.Close(e.FD)
	if err != nil {
		return "", err
	}
	file, err := c.session.Open(c.f)
	if err != nil {
		return "", err
	}
	ring, err := c.session.NewRing(16)
	if err != nil {
		return "", err
	}
	do := func(op lanefs.Op, off, at, n int64) error {
		q := &lanefs.Request{Op: op, File: file, Memory: memory, Off: off, MemOff: at, Len: n}
		ring.Start(q)
		if err := q.Wait(); err != nil || q.N != n {
			return fmt.Errorf("%d of %d bytes: %w", q.N, n, errors.Join(err, io.ErrShortWrite))
		}
		return nil
	}
	// Whole blocks, which go straight to where they belong. What was there is in the device's caches, and no flush from before is under way.
	if err := c.copy(c.host.Addr(), own.Addr()+4096, 1<<20); err != nil {
		return "", err
	}
	if err := errors.Join(do(lanefs.OpRead, 8192, 4096, 1<<20), c.copy(c.host.Addr(), own.Addr()+4096, 1<<20)); err != nil {
		return "", err
	}
	if !bytes.Equal(c.content[8192:8192+1<<20], c.host.Host()[:1<<20]) {
		return "", errors.New("a ring's read of blocks has other bytes than the file")
	}
	if err := do(lanefs.OpRead, ringFrom, ringAt, ringLen); err != nil {
		return "", err
	}
	if err := c.copy(c.host.Addr(), own.Addr()+ringAt, ringLen); err != nil {
		return "", err
	}
	if !bytes.Equal(c.content[ringFrom:ringFrom+ringLen], c.host.Host()[:ringLen]) {
		return "", errors.New("a ring's read has other bytes than the file")
	}
	if err := do(lanefs.OpWrite, ringTo, ringAt, ringLen); err != nil {
		return "", err
	}
	got := make([]byte, len(c.content))
	if _, err := c.f.ReadAt(got, 0); err != nil {
		return "", err
	}
	if !bytes.Equal(ringed(c.content), got) {
		return "", errors.New("a ring's write made another file")
	}
	return "ok", errors.Join(ring.Close(), memory.Close(), file.Close(), own.Close())
}

// closeUnderCopy closes a mapping while a copy from it is under way.
func (c *hipClient) closeUnderCopy() (string, error) {
	want, err := os.ReadFile(c.f.Name())
	if err != nil {
		return "", err
	}
	for range 5 {
		b, err := c.session.Map(c.f, 0, 0)
		if err != nil {
			return "", err
		}
		at, err := b.Import(c.rt)
		if err != nil {
			return "", err
		}
		clear(c.host.Host())
		for range 8 {
			if err := c.stream.Copy(c.host.Addr(), at, b.Len()); err != nil {
				return "", err
			}
		}
		if err := b.Close(); err != nil {
			return "", err
		}
		if done, err := c.stream.Done(); err != nil || !done {
			return "", fmt.Errorf("the copies had not ended: %w", err)
		}
		if !bytes.Equal(want, c.host.Host()) {
			return "", errors.New("a copy was cut off")
		}
	}
	return "ok", nil
}
