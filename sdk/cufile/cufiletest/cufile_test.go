// Package cufiletest builds libcufile and libhipfile, installs them, and runs a program of their interface on a mount.
package cufiletest

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/lab/csdk"
	"github.com/lanefs/lanefs/lab/cuda"
	"github.com/lanefs/lanefs/lab/made"
)

const mib = 1 << 20

// sanitize is what the compiler is told with LANEFS_SANITIZE, address or thread: the library, the tests and the stand-in for libcuda are built so.
var sanitize = func() []string {
	if s := os.Getenv("LANEFS_SANITIZE"); s != "" {
		return []string{"-fsanitize=" + s, "-O1", "-g", "-fno-omit-frame-pointer"}
	}
	return nil
}()

var dest string // where the libraries are installed, once for all tests

// built installs the libraries as a packager would, and returns where.
var built = sync.OnceValues(func() (string, error) {
	for _, tool := range []string{"cc", "make", "nm"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", nil
		}
	}
	if sanitize == nil {
		return filepath.Join(dest, "usr"), csdk.CuFile("DESTDIR="+dest, "PREFIX=/usr")
	}
	var words []string
	for _, sources := range []string{"../*.c", "../../c/*.c", "../exports.map", "../Makefile", "../../c/Makefile", "../../c/images.S"} {
		all, err := filepath.Glob(sources)
		if err != nil {
			return "", err
		}
		words = append(words, all...)
	}
	key, err := made.Key([]string{"cc", "make"}, slices.Concat(words, []string{"../../c/images", "libcufile"}, sanitize)...)
	if err != nil {
		return "", err
	}
	dir, err := made.In(key, func(dir string) error {
		out, err := exec.Command("make", "-s", "-C", "..", "install", "BUILD="+filepath.Join(dir, "build"), "DESTDIR="+dir, "PREFIX=/usr",
			"CFLAGS="+strings.Join(sanitize, " "), "LDFLAGS="+sanitize[0]).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return os.RemoveAll(filepath.Join(dir, "build"))
	})
	return filepath.Join(dir, "usr"), err
})

func installed(t *testing.T) string {
	t.Helper()
	usr, err := built()
	require.NoError(t, err)
	if usr == "" {
		t.Skip("needs cc, make and nm: make deps installs them")
	}
	return usr
}

// program builds the test with a header of the interface.
func program(t *testing.T, usr, header string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "test")
	link(t, usr, out, compile(t, "../test.c", "-I"+header, "-idirafter", "facts/types", "-Wno-error"), "-pthread") // a vendor's header may have warnings
	return out
}

// besideCUDA builds a test of this library's, and the stand-in for libcuda, in dir.
func besideCUDA(t *testing.T, name string, flags ...string) (test, dir string) {
	t.Helper()
	usr := installed(t)
	dir = t.TempDir()
	_, err := cuda.Build("cc", dir, sanitize...)
	require.NoError(t, err)
	test = filepath.Join(dir, name)
	link(t, usr, test, compile(t, filepath.Join("..", name+".c"), "-I"+filepath.Join(usr, "include/lanefs")), append(flags, "-ldl")...)
	return test, dir
}

// compile has the object of a source that the compiler makes, or has made of the same before, beside the libraries.
func compile(t *testing.T, source string, flags ...string) string {
	t.Helper()
	object := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(source), ".c")+".o")
	args := slices.Concat(sanitize, []string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-c", source}, flags)
	require.NoError(t, made.Compile(object, nil, "cc", args...))
	return object
}

// link makes a program of an object, which finds libcufile where it is installed.
func link(t *testing.T, usr, program, object string, flags ...string) {
	t.Helper()
	run(t, "cc", append([]string{"-o", program, object, filepath.Join(usr, "lib/lanefs/libcufile.so.0"), "-Wl,-rpath," + filepath.Join(usr, "lib/lanefs")}, flags...)...)
}

// content is what the test expects of its files.
func content() []byte {
	b := make([]byte, 5*mib+17)
	for i := range b {
		b[i] = byte(i % 251)
	}
	return b
}

// files gives a file of the mount and one elsewhere, with what the tests expect of them.
func files(t *testing.T, m *sharetest.Mount) (file, other string) {
	t.Helper()
	f := m.Write("file", content())
	require.NoError(t, f.Close()) // or the mount is busy at the end
	other = filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, content(), 0o600))
	return f.Name(), other
}

func TestCuFile(t *testing.T) {
	usr := installed(t)
	test := program(t, usr, filepath.Join(usr, "include/lanefs"))
	m := sharetest.New(t, 128*mib, 64*mib)
	file, other := files(t, m)

	for _, roads := range []struct{ shared, small string }{{"0", "lanes"}, {"1", "lanes"}, {"now", "lanes"}, {"0", "cache"}} { // without the road by shared memory, with it, small reads by the page cache
		shared := roads.shared
		cmd := exec.Command(test, file, other)
		cmd.Env = append(os.Environ(), "LANEFS_CUFILE_MAP="+shared, "LANEFS_CUFILE_SMALL="+roads.small, "LANEFS_TRACE=1", "LANEFS_REAL_CUFILE=") // the machine's own would be asked for the other file
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		require.NoError(t, err, "%s", errs.String()[max(0, errs.Len()-2000):])
		require.Equal(t, "ok\n", string(out))
		require.Contains(t, errs.String(), ", LaneFS, stage, ")
		require.Equal(t, roads.small == "cache", strings.Contains(errs.String(), ", LaneFS, page cache, "))
		require.Equal(t, shared != "0", strings.Contains(errs.String(), ", LaneFS, shared memory, "))
	}
}

// TestReset: the program resets its GPU again and again, and goes on, by every road.
func TestReset(t *testing.T) {
	test, dir := besideCUDA(t, "testreset", "-pthread")
	m := sharetest.New(t, 128*mib, 64*mib)
	file, other := files(t, m)
	for _, c := range [][]string{
		{"LANEFS_CUFILE_SMALL=lanes", "LANEFS_CUFILE_MAP=0"},
		{"LANEFS_CUFILE_SMALL=lanes", "LANEFS_CUFILE_MAP=now", "LANEFS_COPIES=kernel"},
		{"LANEFS_CUFILE_SMALL=cache", "LANEFS_CUFILE_COPIER=now"},
	} {
		cmd := exec.Command(test, file, other)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "LANEFS_REAL_CUFILE=", "CUDA_VISIBLE_DEVICES=0",
			"LANEFS_FAKE_CUDA=GPU-11111111-2222-3333-4444-555555555555@0000:01:00.0")
		cmd.Env = append(cmd.Env, c...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s, %s", c, out)
		require.Equal(t, "ok\n", string(out))
	}
}

// TestCUDA: with memory of two GPUs of a stand-in for libcuda: the driver's calls of a small read are counted, and input is bad.
func TestCUDA(t *testing.T) {
	test, dir := besideCUDA(t, "testcuda", "-pthread")
	m := sharetest.New(t, 128*mib, 64*mib)
	file, other := files(t, m)
	for _, c := range [][]string{ // how small reads go, how batches are copied, who runs them
		{"LANEFS_CUFILE_SMALL=lanes"},
		{"LANEFS_CUFILE_SMALL=cache"},
		{"LANEFS_CUFILE_SMALL=cache", "LANEFS_CUFILE_VALUE=0"},
		{"LANEFS_CUFILE_SMALL=lanes", "LANEFS_COPIES=kernel"},
		{"LANEFS_CUFILE_SMALL=lanes", "LANEFS_COPIES=calls"},
		{"LANEFS_CUFILE_SMALL=cache", "LANEFS_COPIES=batch"},
		{"LANEFS_CUFILE_SMALL=lanes", "LANEFS_COPIES=batch", "LANEFS_CUFILE_BATCH=thread"},
	} {
		cmd := exec.Command(test, file, other)
		if strings.Contains(strings.Join(c, " "), "LANEFS_COPIES") {
			cmd.Args = append(cmd.Args, "many")
		}
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "LANEFS_CUFILE_MAP=0", "LANEFS_CUFILE_COPIER=0", "LANEFS_REAL_CUFILE=", "CUDA_VISIBLE_DEVICES=0,1",
			"LANEFS_FAKE_CUDA=GPU-11111111-2222-3333-4444-555555555555@0000:01:00.0,GPU-66666666-2222-3333-4444-555555555555@0000:c1:00.0")
		cmd.Env = append(cmd.Env, c...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s, %s", c, out)
		require.Equal(t, "ok\n", string(out))
	}
}

// TestCopier: small reads by a kernel that stays on the GPU, of the page cache's bytes and of shared memory.
func TestCopier(t *testing.T) {
	test, dir := besideCUDA(t, "testcopier", "-pthread")
	m := sharetest.New(t, 128*mib, 64*mib)
	file, _ := files(t, m)
	for _, c := range [][]string{
		{"LANEFS_CUFILE_SMALL=cache", "LANEFS_CUFILE_MAP=0", "LANEFS_CUFILE_COPIER=now"},
		{"LANEFS_CUFILE_SMALL=lanes", "LANEFS_CUFILE_MAP=now", "LANEFS_CUFILE_COPIER=now"},
		{"LANEFS_CUFILE_SMALL=cache", "LANEFS_CUFILE_MAP=0"},
		{"LANEFS_CUFILE_SMALL=cache", "LANEFS_CUFILE_MAP=0", "LANEFS_CUFILE_COPIER=0"},
	} {
		cmd := exec.Command(test, file)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "LANEFS_REAL_CUFILE=", "CUDA_VISIBLE_DEVICES=0,1",
			"LANEFS_FAKE_CUDA=GPU-11111111-2222-3333-4444-555555555555@0000:01:00.0,GPU-66666666-2222-3333-4444-555555555555@0000:c1:00.0")
		cmd.Env = append(cmd.Env, c...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s, %s", c, out)
		require.Equal(t, "ok\n", string(out))
	}
}

// TestStreams: streams of the program's, with files of two mounts.
func TestStreams(t *testing.T) {
	test, dir := besideCUDA(t, "teststream", "-pthread")
	var files [2]string
	for i := range files {
		f := sharetest.New(t, 64*mib, 32*mib).Write("file", content())
		require.NoError(t, f.Close())
		files[i] = f.Name()
	}
	cmd := exec.Command(test, files[0], files[1])
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "LANEFS_CUFILE_SMALL=lanes", "LANEFS_CUFILE_MAP=0", "LANEFS_REAL_CUFILE=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "ok\n", string(out))
}

// TestCaptures: streams that are captured into graphs, and contexts of the program's own.
func TestCaptures(t *testing.T) {
	test, dir := besideCUDA(t, "testcapture", "-pthread")
	m := sharetest.New(t, 64*mib, 32*mib)
	file, other := files(t, m)
	for _, small := range []string{"lanes", "cache"} {
		for _, shared := range []string{"0", "1"} {
			cmd := exec.Command(test, file, other)
			cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "LANEFS_CUFILE_SMALL="+small, "LANEFS_CUFILE_MAP="+shared, "LANEFS_REAL_CUFILE=")
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s %s: %s", small, shared, out)
			require.Equal(t, "ok\n", string(out))
		}
	}
}

// TestInit: the library initializes CUDA's driver for programs that leave it to cuFile.
func TestInit(t *testing.T) {
	test, dir := besideCUDA(t, "testinit", "-pthread")
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, content(), 0o600))
	for _, lines := range []string{"0", "1"} {
		cmd := exec.Command(test, file)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "LANEFS_REAL_CUFILE=", "LANEFS_TRACE="+lines)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

// TestDefaultStreams: the streams that have no names of their own, by several threads and on two devices.
func TestDefaultStreams(t *testing.T) {
	test, dir := besideCUDA(t, "testdefault", "-pthread")
	f := sharetest.New(t, 64*mib, 32*mib).Write("file", content())
	require.NoError(t, f.Close())
	for _, copies := range []string{"", "batch"} {
		cmd := exec.Command(test, f.Name())
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "LANEFS_CUFILE_SMALL=lanes", "LANEFS_CUFILE_MAP=0", "LANEFS_REAL_CUFILE=", "LANEFS_COPIES="+copies,
			"CUDA_VISIBLE_DEVICES=0,1", "LANEFS_FAKE_CUDA=GPU-11111111-2222-3333-4444-555555555555@0000:01:00.0,GPU-66666666-2222-3333-4444-555555555555@0000:c1:00.0")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, "ok\n", string(out))
	}
}

// TestThreadSanitizer: TestStreams and TestDefaultStreams once more, with the library, its tests and the stand-in built for it: what threads share they share in order.
func TestThreadSanitizer(t *testing.T) {
	if sanitize != nil {
		t.Skip("all is built for a sanitizer already")
	}
	installed(t)
	source := filepath.Join(t.TempDir(), "empty.c")
	require.NoError(t, os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o600))
	program := strings.TrimSuffix(source, ".c")
	if out, err := exec.Command("cc", "-fsanitize=thread", "-o", program, source).CombinedOutput(); err != nil {
		t.Skipf("needs ThreadSanitizer of cc: %s", out)
	}
	if out, err := exec.Command(program).CombinedOutput(); err != nil {
		t.Skipf("ThreadSanitizer does not run here (sysctl vm.mmap_rnd_bits=28 may help): %s", out)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^(TestStreams|TestDefaultStreams)$", "-test.v")
	cmd.Env = append(os.Environ(), "LANEFS_SANITIZE=thread")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	if strings.Contains(string(out), "--- SKIP") {
		t.Skipf("%s", out)
	}
	for _, name := range []string{"TestStreams", "TestDefaultStreams"} {
		require.Contains(t, string(out), "--- PASS: "+name)
	}
}

// TestRace: handles, files and memory that go away, and forks, while calls are under way; with memory of the CPU, and of a GPU of the stand-in. Make test
// takes one way of small reads for each.
func TestRace(t *testing.T) {
	test, dir := besideCUDA(t, "testrace", "-pthread")
	m := sharetest.New(t, 128*mib, 64*mib)
	file, other := files(t, m)
	for k, c := range []struct{ small, memory string }{{"cache", "cpu"}, {"lanes", "cpu"}, {"lanes", "cuda"}, {"cache", "cuda"}} {
		if !disktest.Turn(k, 2) {
			continue
		}
		cmd := exec.Command(test, file, other, c.memory)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "LANEFS_CUFILE_SMALL="+c.small, "LANEFS_REAL_CUFILE=")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%v, %s", c, out)
		require.Equal(t, "ok\n", string(out))
	}
}

// TestChoosing: which way small reads go, by what both ways take: no clock but the test's.
func TestChoosing(t *testing.T) {
	installed(t)
	test := filepath.Join(t.TempDir(), "choosing")
	require.NoError(t, made.Compile(test, []string{"../choose.c"}, "cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-I..", "-I../../c", "facts/choosing.c", "-pthread"))
	require.Equal(t, "ok\n", run(t, test))
}

// Files that are not on LaneFS go to the vendor's library, wherever it is found, but never to LaneFS's own.
func TestVendor(t *testing.T) {
	usr := installed(t)
	dir, header, own := t.TempDir(), "-I"+filepath.Join(usr, "include/lanefs"), filepath.Join(usr, "lib/lanefs/libcufile.so.0")
	vendor, passed, file := filepath.Join(dir, "libcufile.so.0"), filepath.Join(dir, "passed"), filepath.Join(dir, "file")
	run(t, "cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", header, "-o", vendor, "facts/vendor.c")
	run(t, "cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", header, "-o", passed, "facts/passed.c", own, "-Wl,-rpath,"+filepath.Dir(own))
	require.NoError(t, os.WriteFile(file, content(), 0o600))
	const theirs = "10 -5034 10 VVVV\n"
	own2, err := os.ReadFile(own)
	require.NoError(t, err)
	copied := filepath.Join(dir, "copied.so")
	require.NoError(t, os.WriteFile(copied, own2, 0o755))
	for _, c := range []struct{ env, says, warns string }{
		{"LANEFS_REAL_CUFILE=" + vendor, theirs, "vendor: open, batches of 77\nvendor: buffer of 100 bytes, 1 0\nvendor: deregister 1\nvendor: no buffer 1\nvendor: close\n"},
		{"LANEFS_REAL_CUFILE=", "10 10 10 \x12\x13\x14\x15\n", ""},
		{"LANEFS_REAL_CUFILE=" + copied, "10 10 10 \x12\x13\x14\x15\n", "LaneFS's own"},
		{"LANEFS_REAL_CUFILE=/no/such/library", "10 10 10 \x12\x13\x14\x15\n", "cannot open"},
		{"LD_LIBRARY_PATH=" + filepath.Dir(own) + ":" + dir, theirs, "vendor: open, batches of 77\n"},
	} {
		require.NoError(t, os.WriteFile(file, content()[5:], 0o600))
		cmd := exec.Command(passed, file)
		cmd.Env = append(os.Environ(), c.env)
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		require.NoError(t, err, c.env)
		require.Equal(t, c.says, string(out), c.env)
		require.Contains(t, errs.String(), c.warns, c.env)
	}
}

// What libcufile.so.1.15 of CUDA 13.0 exports, C++'s own left out.
var symbols = strings.Fields(`
	cuFileBatchIOCancel cuFileBatchIODestroy cuFileBatchIOGetStatus cuFileBatchIOSetUp cuFileBatchIOSubmit cuFileBufDeregister
	cuFileBufRegister cuFileCopyGpu cuFileCopyGpuPosixIORetry cuFileCopyGpuWrap cuFileCopyGpuWrapPosixIORetry cuFileDriverClose
	cuFileDriverClose_v2 cuFileDriverGetProperties cuFileDriverOpen cuFileDriverSetMaxCacheSize cuFileDriverSetMaxDirectIOSize
	cuFileDriverSetMaxPinnedMemSize cuFileDriverSetPollMode cuFileGetBARSizeInKB cuFileGetParameterBool cuFileGetParameterMinMaxValue
	cuFileGetParameterPosixPoolSlabArray cuFileGetParameterSizeT cuFileGetParameterString cuFileGetStatsL1 cuFileGetStatsL2
	cuFileGetStatsL3 cuFileGetStatsLevel cuFileGetVersion cuFileGpuWaitValue32 cuFileHandleDeregister cuFileHandleRegister
	cuFileInlineGpu cuFileRead cuFileReadAsync cuFileSetParameterBool cuFileSetParameterPosixPoolSlabArray cuFileSetParameterSizeT
	cuFileSetParameterString cuFileSetStatsLevel cuFileSparseGpu cuFileStatsReset cuFileStatsStart cuFileStatsStop
	cuFileStreamDeregister cuFileStreamHandleInline cuFileStreamHandleSparse cuFileStreamRegister cuFileStreamWaitValue32
	cuFileUseCount cuFileWrite cuFileWriteAsync
	_Z15cuFileLoggerDbgPKcS0_ _Z15cuFileLoggerErrPKcS0_ _Z16cuFileLoggerInfoPKcS0_ _Z16cuFileLoggerWarnPKcS0_
	_Z17cuFileLoggerTracePKcS0_ _Z18cuFileLoggerNoticePKcS0_ _Z40__device_stub__Z20cuFileGpuWaitValue32yjyj
	_Z47__device_stub__Z13cuFileCopyGpuP13gpu_copy_in_sP13gpu_copy_in_s
	_Z49__device_stub__Z15cuFileInlineGpuP13gpu_meta_in_sP13gpu_meta_in_s
	_Z49__device_stub__Z15cuFileSparseGpuP13gpu_meta_in_sP13gpu_meta_in_s
	_Z59__device_stub__Z25cuFileCopyGpuPosixIORetryP13gpu_copy_in_sP13gpu_copy_in_s`)

// Every symbol is there, without a version, and the README lists those that only say that they are not supported.
func TestSymbols(t *testing.T) {
	usr := installed(t)
	var have []string
	for line := range strings.Lines(run(t, "nm", "-D", "--defined-only", filepath.Join(usr, "lib/lanefs/libcufile.so.0"))) {
		have = append(have, strings.Fields(line)[2])
	}
	want := append(slices.Clone(symbols), "lanefs_cufile_build")
	slices.Sort(want)
	slices.Sort(have)
	require.Equal(t, want, have)

	source, err := os.ReadFile("../cufile.c")
	require.NoError(t, err)
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	_, list, found := strings.Cut(string(readme), "## Not done")
	require.True(t, found)
	refused := 0
	for _, s := range symbols {
		done := !strings.Contains(string(source), "NOT_DONE("+s+")") && !strings.Contains(string(source), `"`+s+`")`) && s != "cuFileGetBARSizeInKB"
		if !done {
			refused++
		}
		require.Equal(t, done, !strings.Contains(list, "`"+s+"`"), "%s in the list of what is not done", s)
	}
	require.Equal(t, refused, strings.Count(list, "`cuFile")+strings.Count(list, "`_Z"))
}

// TestRefused: what the README lists as not done says so when it is called, whatever it is called with.
func TestRefused(t *testing.T) {
	usr := installed(t)
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	_, list, found := strings.Cut(string(readme), "## Not done")
	require.True(t, found)
	names := regexp.MustCompile("`((?:cuFile|_Z)\\w+)`").FindAllStringSubmatch(list, -1)
	require.Greater(t, len(names), 20)
	program := filepath.Join(t.TempDir(), "refused")
	run(t, "cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"+filepath.Join(usr, "include/lanefs"), "-o", program, "facts/refused.c", "-ldl")
	args, want := []string{filepath.Join(usr, "lib/lanefs/libcufile.so.0")}, ""
	for _, name := range names {
		args = append(args, name[1])
		want += "5007 0 " + name[1] + "\n" // CU_FILE_PLATFORM_NOT_SUPPORTED
	}
	require.Equal(t, want, run(t, program, args...))
}

// TestHIPSymbols: libhipfile has all that its header declares, and nothing else.
func TestHIPSymbols(t *testing.T) {
	usr := installed(t)
	header, err := os.ReadFile(filepath.Join(usr, "include/lanefs/hipfile.h"))
	require.NoError(t, err)
	var want, have []string
	for _, name := range regexp.MustCompile(`\b(hipFile[A-Z]\w+)\(`).FindAllStringSubmatch(string(header), -1) {
		want = append(want, name[1])
	}
	for line := range strings.Lines(run(t, "nm", "-D", "--defined-only", filepath.Join(usr, "lib/lanefs/libhipfile.so.0"))) {
		have = append(have, strings.Fields(line)[2])
	}
	want = append(want, "lanefs_cufile_build")
	slices.Sort(want)
	slices.Sort(have)
	require.Equal(t, slices.Compact(want), have)
}

// TestInstall: what programs are built and linked with is where make install says; the libraries have the vendors' names, and stay loaded, since threads and
// memory of theirs outlive a dlclose.
func TestInstall(t *testing.T) {
	usr := installed(t)
	for _, name := range []string{"cufile", "hipfile"} {
		header, err := os.ReadFile(filepath.Join(usr, "include/lanefs", name+".h"))
		require.NoError(t, err)
		own, err := os.ReadFile(filepath.Join("..", name+".h"))
		require.NoError(t, err)
		require.Equal(t, string(own), string(header))
		lib := filepath.Join(usr, "lib/lanefs/lib"+name+".so")
		to, err := os.Readlink(lib)
		require.NoError(t, err)
		require.Equal(t, "lib"+name+".so.0", to)
		f, err := elf.Open(lib)
		require.NoError(t, err)
		soname, err := f.DynString(elf.DT_SONAME)
		require.NoError(t, err)
		require.Equal(t, []string{"lib" + name + ".so.0"}, soname)
		flags, err := f.DynValue(elf.DT_FLAGS_1)
		require.NoError(t, err)
		require.NotZero(t, flags[0]&uint64(elf.DF_1_NODELETE))
		require.NoError(t, f.Close())
	}
}

// The vendors' own headers, where the machine or LANEFS_TEST_HEADERS (directories of cufile.h and hipfile.h, with ":") has them: programs made
// with them see the same numbers and layouts. Headers of older versions have fewer.
func TestHeaders(t *testing.T) {
	usr := installed(t)
	found := false
	for _, dir := range append(filepath.SplitList(os.Getenv("LANEFS_TEST_HEADERS")), "/usr/local/cuda/include", "/opt/rocm/include") {
		for _, name := range []string{"cufile.h", "hipfile.h"} {
			theirs := filepath.Join(dir, name)
			if _, err := os.Stat(theirs); err != nil {
				continue
			}
			found = true
			got, missing := facts(t, name, dir)
			want, none := facts(t, name, filepath.Join(usr, "include/lanefs"), missing...)
			require.Empty(t, none)
			require.Equal(t, want, got, theirs)
			require.GreaterOrEqual(t, strings.Count(got, "\n"), 80, theirs)
			if name != "cufile.h" || len(missing) > 0 { // the program uses all that there is
				continue
			}
			file, other := files(t, sharetest.New(t, 128*mib, 64*mib))
			cmd := exec.Command(program(t, usr, dir), file, other)
			cmd.Env = append(os.Environ(), "LANEFS_CUFILE_MAP=0", "LANEFS_CUFILE_SMALL=lanes", "LANEFS_REAL_CUFILE=")
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
	}
	if !found {
		t.Skip("needs cufile.h of CUDA or hipfile.h of ROCm: name their directories in LANEFS_TEST_HEADERS")
	}
}

// facts is what a program finds in a header, and the facts that the header does not have. It is asked about none of without.
func facts(t *testing.T, name, dir string, without ...string) (all string, missing []string) {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("facts", strings.TrimSuffix(name, ".h")+".c"))
	require.NoError(t, err)
	head, body, found := strings.Cut(string(source), "int main(void)\n{\n")
	require.True(t, found)
	asked := regexp.MustCompile(`\b[NSO]\([^()]*\)`).FindAllString(body, -1) // a line each, so that the compiler says which
	asked = slices.DeleteFunc(asked, func(fact string) bool { return slices.Contains(without, fact) })
	for {
		dirs := t.TempDir()
		c, out := filepath.Join(dirs, "facts.c"), filepath.Join(dirs, "facts")
		require.NoError(t, os.WriteFile(c, []byte(head+"int main(void) {\n#line 1 \"asked\"\n"+strings.Join(asked, "\n")+"\n}\n"), 0o600))
		said, err := exec.Command("cc", "-std=gnu11", "-w", "-fmax-errors=0", "-I"+dir, "-idirafter", "facts/types", "-o", out, c).CombinedOutput()
		if err == nil {
			return run(t, out), missing
		}
		lines := regexp.MustCompile(`(?m)^asked:(\d+):.* error: `).FindAllSubmatch(said, -1)
		require.NotEmpty(t, lines, "%s", said)
		for _, l := range lines {
			n, err := strconv.Atoi(string(l[1]))
			require.NoError(t, err)
			if fact := asked[n-1]; fact != "" {
				missing, asked[n-1] = append(missing, fact), ""
			}
		}
		asked = slices.DeleteFunc(asked, func(fact string) bool { return fact == "" })
		// The end of the list of errors is no fact of a shorter one.
		if last := "N(CU_FILE_IO_MAX_ERROR)"; slices.Contains(asked, last) {
			missing, asked = append(missing, last), slices.DeleteFunc(asked, func(fact string) bool { return fact == last })
		}
	}
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	if name == "cc" {
		args = append(slices.Clone(sanitize), args...)
	}
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %q:\n%s", name, args, out)
	return string(out)
}

// TestClosed: a program that closes the library's own descriptors, and opens others under their numbers.
func TestClosed(t *testing.T) {
	usr := installed(t)
	test := filepath.Join(t.TempDir(), "testclose")
	link(t, usr, test, compile(t, "../testclose.c", "-I"+filepath.Join(usr, "include/lanefs"), "-I../../c"))
	m := sharetest.New(t, 128*mib, 64*mib)
	file, other := files(t, m)
	for _, c := range [][]string{{"LANEFS_CUFILE_SMALL=lanes", "LANEFS_CUFILE_MAP=0"}, {"LANEFS_CUFILE_SMALL=cache"}, {}} {
		cmd := exec.Command(test, file, other)
		cmd.Env = append(append(os.Environ(), "LANEFS_REAL_CUFILE="), c...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%q: %s", c, out)
		require.Equal(t, "ok\n", string(out))
	}
}

// TestEnded: whatever number the kernel has for the end of a daemon in the middle of a call, the library's is one.
func TestEnded(t *testing.T) {
	usr := installed(t)
	test := filepath.Join(t.TempDir(), "ended")
	link(t, usr, test, compile(t, "facts/ended.c", "-I"+filepath.Join(usr, "include/lanefs")), "-rdynamic", "-ldl")
	m := sharetest.New(t, 64*mib, 32*mib)
	f := m.Write("file", content())
	require.NoError(t, f.Close())
	cmd := exec.Command(test, f.Name())
	cmd.Env = append(os.Environ(), "LANEFS_CUFILE_SMALL=cache", "LANEFS_CUFILE_MAP=0", "LANEFS_REAL_CUFILE=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "ok\n", string(out))
}

// TestOdd: what programs do to descriptors, threads and themselves while calls are under way. Make test takes one way of small reads.
func TestOdd(t *testing.T) {
	if sanitize != nil {
		t.Skip("threads are cancelled: sanitizers do not bear that")
	}
	test, dir := besideCUDA(t, "testodd", "-pthread", "-rdynamic")
	m := sharetest.New(t, 128*mib, 64*mib)
	file, other := files(t, m)
	for k, small := range []string{"lanes", "cache"} {
		if !disktest.Turn(k, 2) {
			continue
		}
		cmd := exec.Command(test, file, other)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "LANEFS_CUFILE_SMALL="+small, "LANEFS_CUFILE_MAP=0", "LANEFS_REAL_CUFILE=")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, "ok\n", string(out))
	}
}
