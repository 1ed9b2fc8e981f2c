package device_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/share/gate"
	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/lab/csdk"
	"github.com/lanefs/lanefs/lab/cuda"
	lanefs "github.com/lanefs/lanefs/sdk/go"
	"github.com/lanefs/lanefs/sdk/go/device"
)

const (
	mib  = 1 << 20
	size = 3*mib + 321 // of the file
	// The test binary is a program too: what it does, and that it has a GPU of the stand-in for libcuda.
	beProgram = "LANEFS_TEST_PROGRAM"
)

func TestMain(m *testing.M) {
	gate.RunIfChild()
	if what := os.Getenv(beProgram); what != "" {
		if err := programs[what](os.Args[1]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("ok")
		return
	}
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

var built string // the directory of build

// build makes the stand-in for libcuda, once for all tests.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "lanefs-device")
	if err != nil {
		return "", err
	}
	built = dir
	_, err = cuda.Build("cc", dir)
	return dir, err
})

// library has this process and its children find the C library. It returns the folder of the stand-in.
func library(t *testing.T) string {
	t.Helper()
	for _, tool := range []string{"cc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: make deps installs it", tool)
		}
	}
	c, err := csdk.C()
	require.NoError(t, err)
	t.Setenv("LANEFS_LIBRARY", filepath.Join(c, "liblanefs.so.1.0.0"))
	dir, err := build()
	require.NoError(t, err)
	return dir
}

// program runs this binary as another program, with a GPU.
func program(t *testing.T, what, path string) *exec.Cmd {
	t.Helper()
	dir := library(t)
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, path)
	cmd.Env = append(os.Environ(), beProgram+"="+what, "LD_LIBRARY_PATH="+dir, "CUDA_VISIBLE_DEVICES=0", "LANEFS_FAKE_CUDA=GPU-11111111-2222-3333-4444-555555555555@0000:01:00.0")
	return cmd
}

func content() []byte {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{9}).Read(b)
	return b
}

// pages is memory that Go does not manage.
func pages(t testing.TB, n int) ([]byte, uintptr) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b, uintptr(unsafe.Pointer(unsafe.SliceData(b)))
}

// scattered is n pieces of every length and alignment, none over another, and the last at the end of the file and behind it.
func scattered(n int) (pieces []lanefs.Piece, memory int64) {
	rng := rand.New(rand.NewPCG(1, 2))
	at := int64(3)
	for i := range n {
		k := int64(i * 37 % 1500)
		pieces = append(pieces, lanefs.Piece{Off: rng.Int64N(size - k), MemOff: at, Len: k})
		at += k + int64(i%5)
	}
	pieces = append(pieces, lanefs.Piece{Off: size - 10, MemOff: at, Len: 30}, lanefs.Piece{Off: 1 << 40, MemOff: at + 30, Len: 5}, lanefs.Piece{Off: 7, MemOff: at + 35, Len: 2*mib + 1})
	return pieces, at + 35 + 2*mib + 1 + 9
}

// expect is what memory full of fill has after pieces were read, and the results.
func expect(data []byte, pieces []lanefs.Piece, n int64, fill byte) (memory []byte, results []int64) {
	memory = bytes.Repeat([]byte{fill}, int(n))
	for _, p := range pieces {
		k := max(min(p.Len, int64(len(data))-p.Off), 0)
		results = append(results, k)
		clear(memory[p.MemOff:][:p.Len])
		if k > 0 {
			copy(memory[p.MemOff:], data[p.Off:][:k])
		}
	}
	return memory, results
}

// TestHost: pieces into memory that no GPU knows and out of it, errors of pieces and of batches, and what was closed.
func TestHost(t *testing.T) {
	library(t)
	m := sharetest.New(t, 64*mib, 16*mib)
	data := content()
	f := m.Write("file", data)
	_, err := device.New(f, 77)
	require.ErrorIs(t, err, unix.EINVAL)
	require.ErrorContains(t, err, "1 MiB to 256 MiB")
	_, err = device.New(f, -1)
	require.ErrorIs(t, err, unix.EINVAL)
	elsewhere, err := os.Open(os.Args[0])
	require.NoError(t, err)
	defer elsewhere.Close()
	_, err = device.New(elsewhere, 0)
	require.ErrorIs(t, err, lanefs.ErrNotLaneFS)

	g, err := device.New(f, 2*mib)
	require.NoError(t, err)
	_, err = g.Open(elsewhere)
	require.ErrorIs(t, err, unix.EXDEV)
	file, err := g.Open(f)
	require.NoError(t, err)
	pieces, n := scattered(500)
	memory, at := pages(t, int(n))
	want, counts := expect(data, pieces, n, 'x')
	for name, read := range map[string]func() ([]int64, error){
		"Read": func() ([]int64, error) { return file.Read(at, n, pieces, 0) },
		"ReadAsync": func() ([]int64, error) {
			b, err := file.ReadAsync(at, n, pieces, 0)
			if err != nil {
				return nil, err
			}
			return b.Result()
		},
	} {
		for i := range memory {
			memory[i] = 'x'
		}
		got, err := read()
		require.NoError(t, err, name)
		require.Equal(t, counts, got, name)
		require.True(t, bytes.Equal(want, memory), name)
	}
	require.NotZero(t, g.Ways().Host)

	copy(memory, "new bytes")
	got, err := file.Write(at, n, []lanefs.Piece{{Off: 100, MemOff: 0, Len: 3}, {Off: size + 5, MemOff: 4, Len: 5}}, 0)
	require.NoError(t, err)
	require.Equal(t, []int64{3, 5}, got)
	now, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	require.Equal(t, "new", string(now[100:103]))
	require.Equal(t, "bytes", string(now[size+5:]))
	got, err = file.Read(at, n, nil, 0)
	require.NoError(t, err)
	require.Empty(t, got)

	for _, p := range []lanefs.Piece{{Off: -1, Len: 1}, {Len: -1}, {MemOff: -1, Len: 1}, {MemOff: n, Len: 1}, {Len: n + 1}} {
		_, err = file.Read(at, n, []lanefs.Piece{{Len: 1}, p}, 0)
		require.ErrorIs(t, err, unix.EINVAL)
		require.ErrorContains(t, err, "piece 1, ")
	}
	_, err = file.Read(at, n, []lanefs.Piece{{Off: 1<<63 - 5, Len: 10}}, 0)
	require.ErrorIs(t, err, unix.EINVAL)
	readOnly, err := g.Open(m.Open("file", os.O_RDONLY))
	require.NoError(t, err)
	got, err = readOnly.Write(at, n, []lanefs.Piece{{}, {Len: 10}}, 0)
	require.ErrorIs(t, err, unix.EACCES)
	require.ErrorContains(t, err, "piece 1: ")
	require.Equal(t, []int64{0, 0}, got)
	b, err := readOnly.WriteAsync(at, n, []lanefs.Piece{{}, {Len: 10}}, 0)
	require.NoError(t, err)
	for range 2 {
		got, err = b.Result()
		require.ErrorIs(t, err, unix.EACCES)
		require.ErrorContains(t, err, "piece 1: ")
		require.Equal(t, []int64{0, 0}, got)
	}

	// A piece whose first bytes cannot be read has that error, though all behind them can be; its neighbours are whole.
	var reads atomic.Int32
	m.Fail(func(q *blockdev.Request) bool {
		return q.Op == blockdev.OpRead && q.Length() >= mib/8 && reads.Add(1) == 1
	})
	_, err = file.Read(at, n, []lanefs.Piece{{Len: 3}, {Len: 2 * mib, MemOff: 16}, {Off: 9, Len: 4, MemOff: 2*mib + 16}}, 0)
	require.ErrorIs(t, err, unix.EIO)
	require.ErrorContains(t, err, "piece 1: ")
	require.Equal(t, now[:3], memory[:3])
	require.Equal(t, now[9:13], memory[2*mib+16:][:4])

	require.NoError(t, readOnly.Close())
	require.ErrorIs(t, readOnly.Close(), os.ErrClosed)
	_, err = readOnly.Read(at, n, pieces, 0)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = readOnly.ReadAsync(at, n, pieces, 0)
	require.ErrorIs(t, err, os.ErrClosed)
	require.NoError(t, g.Close())
	require.ErrorIs(t, g.Close(), os.ErrClosed)
	_, err = file.Read(at, n, pieces, 0)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorIs(t, file.Close(), os.ErrClosed)
	_, err = g.Open(f)
	require.ErrorIs(t, err, os.ErrClosed)
	require.Zero(t, g.Ways())
}

// TestGone: after the end of the daemon batches fail, and a stage is closed all the same.
func TestGone(t *testing.T) {
	library(t)
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", content())
	g, err := device.New(f, 2*mib)
	require.NoError(t, err)
	file, err := g.Open(f)
	require.NoError(t, err)
	require.NoError(t, f.Close()) // or the mount is busy at the end
	_, at := pages(t, mib)
	_, err = file.Read(at, mib, []lanefs.Piece{{Len: mib}}, 0)
	require.NoError(t, err)
	m.Close()
	for range 2 {
		_, err = file.Read(at, mib, []lanefs.Piece{{Len: mib}}, 0)
		require.ErrorIs(t, err, unix.ECONNRESET)
	}
	b, err := file.ReadAsync(at, mib, []lanefs.Piece{{Len: mib}}, 0)
	require.NoError(t, err)
	_, err = b.Result()
	require.ErrorIs(t, err, unix.ECONNRESET)
	require.Error(t, file.Close())
	require.NoError(t, g.Close())
}

// TestNoLibrary: the error says what is missing, and what to do.
func TestNoLibrary(t *testing.T) {
	cmd := exec.Command(os.Args[0], os.Args[0])
	cmd.Env = append(os.Environ(), beProgram+"=without", "LANEFS_LIBRARY=")
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "not on a LaneFS mount") {
		t.Skip("liblanefs.so.1 is installed")
	}
	require.Error(t, err)
	require.Contains(t, string(out), "install the package liblanefs1, or make -C sdk/c install; LANEFS_LIBRARY says where it is): liblanefs.so.1")
	cmd = exec.Command(os.Args[0], os.Args[0])
	cmd.Env = append(os.Environ(), beProgram+"=without", "LANEFS_LIBRARY=libc.so.6")
	out, err = cmd.CombinedOutput()
	require.Error(t, err)
	require.Regexp(t, `LANEFS_LIBRARY says where it is\): libc.so.6 has no lanefs_\w+: it is too old, or another library`, string(out))
}

// TestStreams: batches on streams of a GPU, and in their order, see programs.
func TestStreams(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	f := m.Write("file", content())
	require.NoError(t, f.Close())
	for _, what := range []string{"order", "errors", "garbage", "busy"} {
		t.Run(what, func(t *testing.T) {
			require.NoError(t, os.WriteFile(f.Name(), content(), 0o600))
			out, err := program(t, what, f.Name()).CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Equal(t, "ok\n", string(out))
		})
	}
}

// TestChild: a process that this one has started has a stage of its own, and its end, in the midst of a batch, is no one else's.
func TestChild(t *testing.T) {
	library(t)
	m := sharetest.New(t, 64*mib, 16*mib)
	data := content()
	f := m.Write("file", data)
	g, err := device.New(f, 2*mib)
	require.NoError(t, err)
	file, err := g.Open(f)
	require.NoError(t, err)
	memory, at := pages(t, size)
	cmd := program(t, "child", f.Name())
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line := make([]byte, 5)
	_, err = out.Read(line)
	require.NoError(t, err)
	require.Equal(t, "busy\n", string(line))
	read := func() {
		clear(memory)
		_, err := file.Read(at, size, []lanefs.Piece{{Len: size}}, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, memory))
	}
	read()
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	read()
	require.NoError(t, g.Close())
}

var programs = map[string]func(path string) error{
	"without": func(path string) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = device.New(f, 0)
		if !errors.Is(err, device.ErrNoLibrary) {
			return fmt.Errorf("another error: %w", err)
		}
		return err
	},
	"order":   with(order),
	"errors":  with(failures),
	"garbage": with(garbage),
	"busy":    with(busy),
	"child":   with(child),
}

// env is what a program with a GPU has.
type env struct {
	*fake
	f      *os.File
	g      *device.Stage
	file   *device.File
	stream uintptr
}

func with(do func(e *env) error) func(string) error {
	return func(path string) (err error) {
		runtime.LockOSThread() // the driver's context is the thread's
		e := &env{}
		if e.fake, err = openFake(); err != nil {
			return err
		}
		if e.f, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
			return err
		}
		defer e.f.Close()
		if e.g, err = device.New(e.f, 2*mib); err != nil {
			return err
		}
		if e.file, err = e.g.Open(e.f); err != nil {
			return err
		}
		if e.stream, err = e.newStream(); err != nil {
			return err
		}
		return do(e)
	}
}

func same(what string, want, got []byte) error {
	if !bytes.Equal(want, got) {
		return fmt.Errorf("%s: other bytes", what)
	}
	return nil
}

// order: many pieces by one launch of the kernel, after what is on the stream and before what follows, without the host waiting.
func order(e *env) error {
	const large = 400 << 10 // more than a part of the stage, less than the stage: a batch for which there is no room waits for the stream
	data := content()
	pieces, n := scattered(400)
	a, memory, err := e.alloc(n)
	if err != nil {
		return err
	}
	b, after, err := e.alloc(n)
	if err != nil {
		return err
	}
	want, counts := expect(data, pieces, n, 'y')
	check := func(what string, results []int64, err error) error {
		if err == nil && fmt.Sprint(results) != fmt.Sprint(counts) {
			err = fmt.Errorf("%s: other results: %v", what, results)
		}
		return errors.Join(err, same(what, want, memory), same(what+", what follows", want, after))
	}
	before := e.g.Ways()
	// What is on the stream of the stand-in happens when somebody waits for it.
	if err := e.fill(a, 'y', n, e.stream); err != nil {
		return err
	}
	results, err := e.file.Read(a, n, pieces, e.stream)
	if err := errors.Join(err, e.copy(b, a, n, e.stream), e.sync(e.stream)); err != nil {
		return err
	}
	if err := check("Read", results, nil); err != nil {
		return err
	}
	if w := e.g.Ways(); w.Kernel == before.Kernel {
		return fmt.Errorf("no kernel: %+v", w)
	}

	// The stream stops at a gate: the batch is not carried out before it opens, and the call has returned. It is another stream: whoever waits for an event of the
	// stand-in waits for all that is on its stream, and the stage waits for those of its parts before it uses them again.
	clear(memory)
	clear(after)
	if e.stream, err = e.newStream(); err != nil {
		return err
	}
	gate, open := e.gate()
	if err := errors.Join(e.wait(gate, e.stream), e.fill(a, 'y', n, e.stream)); err != nil {
		return err
	}
	batch, err := e.file.ReadAsync(a, n, pieces[:200], e.stream)
	if err != nil {
		return err
	}
	if _, err := batch.Result(); !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("before the stream came there: %w", err)
	}
	if err := e.file.Close(); !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("a file with a batch was closed: %w", err)
	}
	if err := same("before the stream came there", make([]byte, n), memory); err != nil {
		return err
	}
	open()
	rest, err := e.file.ReadAsync(a, n, pieces[200:], e.stream)
	if err := errors.Join(err, e.copy(b, a, n, e.stream), e.sync(e.stream)); err != nil {
		return err
	}
	results, err = batch.Result()
	more, err1 := rest.Result()
	if err := check("ReadAsync", append(results, more...), errors.Join(err, err1)); err != nil {
		return err
	}

	// A write takes what the memory holds when the stream gets there.
	if e.stream, err = e.newStream(); err != nil {
		return err
	}
	gate, open = e.gate()
	if err := errors.Join(e.wait(gate, e.stream), e.fill(a, 'z', n, e.stream)); err != nil {
		return err
	}
	batch, err = e.file.WriteAsync(a, n, []lanefs.Piece{{Off: 5, MemOff: 1, Len: 1000}, {Off: 2000, MemOff: 5000, Len: large}}, e.stream)
	if err := errors.Join(err, e.fill(a, 'q', n, e.stream)); err != nil {
		return err
	}
	open()
	if err := e.sync(e.stream); err != nil {
		return err
	}
	if results, err = batch.Result(); err != nil || fmt.Sprint(results) != fmt.Sprint([]int64{1000, large}) {
		return fmt.Errorf("WriteAsync: %v: %w", results, err)
	}
	copy(data[5:1005], bytes.Repeat([]byte{'z'}, 1000))
	copy(data[2000:2000+large], bytes.Repeat([]byte{'z'}, large))
	if err := e.fill(a, 'w', n, e.stream); err != nil {
		return err
	}
	if _, err := e.file.Write(a, n, []lanefs.Piece{{Off: 1, MemOff: 1, Len: 2}}, e.stream); err != nil {
		return err
	}
	copy(data[1:], "ww")
	now, err := os.ReadFile(e.f.Name())
	return errors.Join(err, same("the file", data, now), e.file.Close(), e.g.Close())
}

// failures: of pieces, of the GPU's library, of a stream that is none, and of memory.
func failures(e *env) error {
	a, _, err := e.alloc(mib)
	if err != nil {
		return err
	}
	f, err := os.Open(e.f.Name())
	if err != nil {
		return err
	}
	defer f.Close()
	readOnly, err := e.g.Open(f)
	if err != nil {
		return err
	}
	batch, err := readOnly.WriteAsync(a, mib, []lanefs.Piece{{}, {Len: 10}}, e.stream)
	if err := errors.Join(err, e.sync(e.stream)); err != nil {
		return err
	}
	if results, err := batch.Result(); !errors.Is(err, unix.EACCES) || !strings.Contains(err.Error(), "piece 1: ") || len(results) != 2 {
		return fmt.Errorf("a piece that is not allowed: %v: %w", results, err)
	}
	one := []lanefs.Piece{{Len: 4096}}
	e.fail("cuLaunchHostFunc", 1)
	if _, err := e.file.ReadAsync(a, mib, one, e.stream); !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), "cuLaunchHostFunc: error 1") {
		return fmt.Errorf("the driver fails: %w", err)
	}
	gone, err := e.newStream()
	if err := errors.Join(err, e.endStream(gone)); err != nil {
		return err
	}
	if _, err := e.file.ReadAsync(a, mib, one, gone); !errors.Is(err, unix.EIO) {
		return fmt.Errorf("a stream that is none: %w", err)
	}
	if _, err := e.file.Read(a, 2*mib, []lanefs.Piece{{MemOff: mib - 1, Len: 2}}, e.stream); !errors.Is(err, unix.EFAULT) {
		return fmt.Errorf("memory beyond an allocation: %w", err)
	}
	if _, err := e.file.Read(e.memory, 4096, one, e.stream); !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("memory that no GPU knows, and a stream: %w", err)
	}
	// None of these was left over.
	_, err = e.file.Read(a, mib, one, e.stream)
	return errors.Join(err, e.sync(e.stream), readOnly.Close(), e.file.Close(), e.g.Close())
}

// garbage: results arrive though nobody has the batch while the stream writes them, and others' memory stays as it is.
func garbage(e *env) error {
	a, _, err := e.alloc(mib)
	if err != nil {
		return err
	}
	var pieces []lanefs.Piece
	for i := range int64(100) {
		pieces = append(pieces, lanefs.Piece{Off: i, MemOff: i * 8, Len: 5})
	}
	for range 20 {
		gate, open := e.gate()
		stream, err := e.newStream() // as in order
		if err := errors.Join(err, e.wait(gate, stream)); err != nil {
			return err
		}
		ended := make(chan struct{})
		for k := range 3 {
			b, err := e.file.ReadAsync(a, mib, pieces, stream)
			if err != nil {
				return err
			}
			if k == 0 {
				runtime.AddCleanup(b, func(ended chan struct{}) { close(ended) }, ended)
			}
		}
		var others [][]int64
		for range 3 {
			runtime.GC()
			for range 50 {
				others = append(others, make([]int64, 1+len(pieces)))
			}
		}
		select {
		case <-ended:
			return errors.New("a batch on a stream was collected")
		default:
		}
		open()
		if err := e.sync(stream); err != nil {
			return err
		}
		for _, o := range others {
			for _, v := range o {
				if v != 0 {
					return errors.New("results are in memory of others")
				}
			}
		}
	}
	return e.g.Close()
}

// busy: goroutines with streams and stages of their own, and one stage for all.
func busy(e *env) error {
	data := content()
	pieces, n := scattered(100)
	want, _ := expect(data, pieces, n, 0)
	errs := make(chan error, 4)
	for i := range cap(errs) {
		go func() {
			errs <- func() (err error) {
				runtime.LockOSThread()
				if err := e.enter(); err != nil {
					return err
				}
				g, file := e.g, e.file
				if i%2 == 1 {
					if g, err = device.New(e.f, 4*mib); err != nil {
						return err
					}
					if file, err = g.Open(e.f); err != nil {
						return err
					}
				}
				stream, err := e.newStream()
				if err != nil {
					return err
				}
				a, memory, err := e.alloc(n)
				if err != nil {
					return err
				}
				for range 5 {
					batch, err := file.ReadAsync(a, n, pieces, stream)
					if err := errors.Join(err, e.sync(stream)); err != nil {
						return err
					}
					if _, err := batch.Result(); err != nil {
						return err
					}
					if err := same("ReadAsync", want, memory); err != nil {
						return err
					}
				}
				if i%2 == 1 {
					return g.Close() // with the file open
				}
				return nil
			}()
		}()
	}
	var all []error
	for range cap(errs) {
		all = append(all, <-errs)
	}
	return errors.Join(append(all, e.g.Close())...)
}

// child has a batch on a stream that does not come there.
func child(e *env) error {
	a, _, err := e.alloc(mib)
	if err != nil {
		return err
	}
	gate, _ := e.gate()
	if err := e.wait(gate, e.stream); err != nil {
		return err
	}
	if _, err := e.file.ReadAsync(a, mib, []lanefs.Piece{{Len: mib}}, e.stream); err != nil {
		return err
	}
	fmt.Println("busy")
	select {}
}
