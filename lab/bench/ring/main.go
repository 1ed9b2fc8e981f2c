// Command ring measures files of a LaneFS mount as device memory: mapping a whole file, and moving ranges of it through
// a ring into memory of its own.
//
//	go run ./lab/bench/ring FILE…
//
// The first file is read only. With -write a second one is made beside it, and removed.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/cuda"
	"github.com/lanefs/lanefs/gpu/hip"
	"github.com/lanefs/lanefs/gpu/host"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

func main() {
	seconds := flag.Duration("time", 2*time.Second, "how long each row takes")
	write := flag.Bool("write", false, "measure writing too")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "bench: want FILE")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *seconds, *write); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(path string, each time.Duration, write bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	s, err := lanefs.Connect(f)
	if err != nil {
		return err
	}
	defer s.Close()
	facts := s.Facts()
	fmt.Printf("device memory of %s (%s), pool of %d bytes\n", facts.Name, facts.Runtime, facts.PoolSize)
	if err := mapping(s, f); err != nil {
		return err
	}
	if write {
		if err := private(s, path); err != nil {
			return err
		}
	}
	rt, err := open(facts.Runtime)
	if err != nil {
		return err
	}
	defer rt.Close()
	b := &bench{s: s, f: f, each: each}
	if b.size, err = f.Seek(0, 2); err != nil {
		return err
	}
	const room = 1 << 30
	mem, err := rt.Alloc(gpu.DeviceVMM, room)
	if err != nil {
		return err
	}
	defer mem.Close()
	e, err := mem.Export(facts.Kind)
	if err != nil {
		return err
	}
	b.mem, err = s.Register(e)
	unix.Close(e.FD)
	if err != nil {
		return err
	}
	defer b.mem.Close()
	b.room = room
	return b.rings(path, write)
}

func open(name string) (gpu.Runtime, error) {
	switch name {
	case "cuda":
		return cuda.Open(cuda.Options{})
	case "hip":
		return hip.Open(hip.Options{})
	}
	return host.Open(host.Options{})
}

// mapping times the first map of the file, and another one.
func mapping(s *lanefs.Session, f *os.File) error {
	for _, what := range []string{"map the whole file", "map it again"} {
		start := time.Now()
		m, err := s.Map(f, 0, 0)
		if err != nil {
			return err
		}
		elapsed := time.Since(start)
		fmt.Printf("%-28s %10.3f ms %8.2f GB/s\n", what, float64(elapsed.Microseconds())/1e3, float64(m.Len())/elapsed.Seconds()/1e9)
		defer m.Close()
	}
	return nil
}

// private times reads of the whole file into memory of the process's own.
func private(s *lanefs.Session, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for range 4 {
		start := time.Now()
		m, err := s.MapPrivate(f, 0, 0)
		if err != nil {
			return err
		}
		elapsed := time.Since(start)
		fmt.Printf("%-28s %10.3f ms %8.2f GB/s\n", "read the whole file", float64(elapsed.Microseconds())/1e3, float64(m.Len())/elapsed.Seconds()/1e9)
		if err := m.Close(); err != nil {
			return err
		}
	}
	return nil
}

type bench struct {
	s    *lanefs.Session
	f    *os.File
	size int64
	mem  *lanefs.Memory
	room int64
	each time.Duration
}

func (b *bench) rings(path string, write bool) error {
	in, err := b.s.Open(b.f)
	if err != nil {
		return err
	}
	for _, c := range []struct{ n, depth, shift int64 }{{4096, 1, 0}, {4096, 1024, 0}, {4096, 4096, 0}, {4096, 1024, 3}, {64 << 10, 1, 0}, {64 << 10, 256, 0}, {1 << 20, 64, 0}, {4 << 20, 32, 0}} {
		if err := b.row("read", lanefs.OpRead, in, b.size, c.n, c.depth, c.shift); err != nil {
			return err
		}
	}
	if !write {
		return nil
	}
	out, err := os.OpenFile(path+".bench", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	if err := unix.Fallocate(int(out.Fd()), 0, 0, b.room); err != nil {
		return err
	}
	to, err := b.s.Open(out)
	if err != nil {
		return err
	}
	for _, c := range []struct{ n, depth int64 }{{1 << 20, 64}, {4096, 1024}} {
		if err := b.row("write", lanefs.OpWrite, to, b.room, c.n, c.depth, 0); err != nil {
			return err
		}
	}
	return nil
}

// row keeps depth requests of n bytes in flight; shift moves them off every alignment.
func (b *bench) row(what string, op lanefs.Op, f *lanefs.File, size, n, depth, shift int64) error {
	ring, err := b.s.NewRing(int(max(depth, 2)))
	if err != nil {
		return err
	}
	defer ring.Close()
	slots := min(b.room/n-1, depth)
	blocks := size/n - 1
	if blocks < 1 || slots < 1 {
		return fmt.Errorf("the file has %d bytes: want more", size)
	}
	// Half of the requests are started while the other half is in flight.
	group := max(slots/2, 1)
	var groups [2][]*lanefs.Request
	var done, bytes int64
	start := time.Now()
	for k := int64(0); time.Since(start) < b.each || k < 2; k++ {
		g := k % 2
		if depth == 1 && g == 1 {
			continue
		}
		for _, q := range groups[g] {
			if err := q.Wait(); err != nil {
				return fmt.Errorf("%s of %d bytes: %w", what, n, err)
			}
			done, bytes = done+1, bytes+q.N
			q.Off = rand.Int64N(blocks)*n + shift
		}
		for i := int64(len(groups[g])); i < group; i++ {
			groups[g] = append(groups[g], &lanefs.Request{Op: op, File: f, Memory: b.mem, Off: rand.Int64N(blocks)*n + shift,
				MemOff: (g*group+i)%(b.room/n-1)*n + shift, Len: n})
		}
		ring.Start(groups[g]...)
	}
	for _, g := range groups {
		for _, q := range g {
			if err := q.Wait(); err != nil {
				return err
			}
			done, bytes = done+1, bytes+q.N
		}
	}
	elapsed := time.Since(start).Seconds()
	align := ""
	if shift != 0 {
		align = ", unaligned"
	}
	fmt.Printf("%-28s %10.0f /s %8.2f GB/s\n", fmt.Sprintf("%s %d B at depth %d%s", what, n, depth, align), float64(done)/elapsed, float64(bytes)/elapsed/1e9)
	return nil
}
