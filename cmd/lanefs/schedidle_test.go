package main

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/schedidle"
	"github.com/lanefs/lanefs/fs/uring/uringtest"
)

// wayOf is the mount option by which the kernel's requests come by io_uring, or by /dev/fuse.
func wayOf(rings bool) string {
	if rings {
		return "io_uring=on"
	}
	return "io_uring=off"
}

// needSchedIdle skips the test where the daemon may not use SCHED_IDLE.
func (p *place) needSchedIdle(mnt string) {
	p.t.Helper()
	r, err := p.stat(mnt)
	require.NoError(p.t, err)
	if os.Geteuid() != 0 && r.FUSE.SchedIdle == nil {
		require.Contains(p.t, r.FUSE.NoSchedIdle, "CAP_SYS_NICE")
		p.t.Skip(r.FUSE.NoSchedIdle)
	}
}

// smallReads reads blocks of a file of 1 MiB, round the page cache.
type smallReads struct {
	p    *place
	f    *os.File
	into []byte // a page
}

func (p *place) smallReads(file string) *smallReads {
	p.t.Helper()
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_DIRECT, 0)
	require.NoError(p.t, err)
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(p.t, err)
	return &smallReads{p, f, b}
}

func (r *smallReads) close() {
	_ = r.f.Close()
	_ = unix.Munmap(r.into)
}

func (r *smallReads) read(n int) {
	for i := range int64(n) {
		_, err := r.f.ReadAt(r.into, i%256*4096)
		require.NoError(r.p.t, err)
	}
}

// untilSchedIdle reads until one more thread of the daemon has got SCHED_IDLE.
func (r *smallReads) untilSchedIdle(mnt string) {
	r.p.t.Helper()
	times := func() uint64 {
		s, err := r.p.stat(mnt)
		require.NoError(r.p.t, err)
		require.NotNil(r.p.t, s.FUSE.SchedIdle, s.FUSE.NoSchedIdle)
		return s.FUSE.SchedIdle.Times
	}
	before := times()
	r.p.eventually("a thread has SCHED_IDLE", func() bool {
		r.read(1000)
		return times() > before
	})
}

// TestSchedIdle: threads that answer a program get SCHED_IDLE while they are busy, stat counts it, and sched_idle=off has none of it.
func TestSchedIdle(t *testing.T) {
	uringtest.Both(t, func(t *testing.T, rings bool) {
		testSchedIdle(t, wayOf(rings))
	})
}

func testSchedIdle(t *testing.T, way string) {
	p := newPlace(t)
	image, mnt := p.image("image", 64), p.mkdir("mnt")
	p.ok("mount", "-o", way, image, mnt)
	p.needSchedIdle(mnt)
	file := filepath.Join(mnt, "file")
	require.NoError(t, os.WriteFile(file, make([]byte, 1<<20), 0o644))
	r := p.smallReads(file)
	defer r.close()
	r.untilSchedIdle(mnt)
	r.close()
	stat := func() fuseReport {
		r, err := p.stat(mnt)
		require.NoError(t, err)
		return r.FUSE
	}
	require.Regexp(t, `requests    by .*; \d+ threads with SCHED_IDLE, [1-9]\d* times so far, of which busy CPUs ended \d+\n`, p.ok("stat", mnt))
	p.eventually("none has it without requests", func() bool { return stat().SchedIdle.Now == 0 })
	p.ok("umount", mnt)

	p.ok("mount", "-o", way+",sched_idle=off", image, mnt)
	require.Nil(t, stat().SchedIdle)
	require.NotContains(t, p.ok("stat", mnt), "SCHED_IDLE")
	p.ok("umount", mnt)
	fsck(t, image)
}

// TestSchedIdleBesideGPU: a mount with lanes on a GPU has SCHED_IDLE, too, but no thread that has it makes a call of the GPU's runtime, which may have threads begin.
func TestSchedIdleBesideGPU(t *testing.T) {
	require.Equal(t, reflect.ValueOf(schedidle.LeaveHere).Pointer(), reflect.ValueOf((&mountConfig{}).engine().BeforeThreads).Pointer())
	uringtest.Both(t, func(t *testing.T, rings bool) {
		calls := filepath.Join(t.TempDir(), "calls")
		p := newHIPPlace(t, "", "LANEFS_SHIM_IDLE="+calls)
		image, mnt := p.image("image", 64), p.mkdir("mnt")
		p.ok("mount", "--gpu", "hip", "-o", "lanes=gpu:2+cpu:2,vram=16M,"+wayOf(rings), image, mnt)
		p.needSchedIdle(mnt)
		file, long := filepath.Join(mnt, "file"), make([]byte, 4<<20)
		require.NoError(t, os.WriteFile(file, long[:1<<20], 0o644))
		p.ok("vram", "pin", file)
		r := p.smallReads(file)
		defer r.close()
		changed, err := os.OpenFile(file, os.O_WRONLY, 0)
		require.NoError(t, err)
		defer changed.Close()
		for range 20 {
			r.read(200)
			require.NoError(t, os.WriteFile(filepath.Join(mnt, "long"), long, 0o644)) // by the GPU's lanes
			r.read(200)
			require.NoError(t, os.Truncate(filepath.Join(mnt, "long"), 0)) // frees blocks
			r.read(200)
			_, err := changed.WriteAt(long[:300<<10], 4096) // changes what is in the GPU's memory, too
			require.NoError(t, err)
		}
		s, err := p.stat(mnt)
		require.NoError(t, err)
		require.NotZero(t, s.Runtime.Chosen.GPU)
		require.NotNil(t, s.FUSE.SchedIdle)
		t.Logf("%+v", *s.FUSE.SchedIdle) // beside other programs threads seldom have it
		r.close()
		require.NoError(t, changed.Close())
		p.ok("umount", mnt)
		fsck(t, image)
		require.NoFileExists(t, calls)
	})
}
