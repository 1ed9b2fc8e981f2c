package hostile

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// A fifth of e2fsprogs' tests have no image but a script that makes one, with mke2fs, debugfs, resize2fs and others. They are
// run once, with the tools of this system, when the samples are fetched. In place of e2fsck they run a program that copies the
// image before it executes e2fsck, so that the image is kept as damaged as the test made it. Of each test the first and the last
// image are samples.

// folders are the tests whose samples are taken: of e2fsck, journals, debugfs, e2image, mke2fs, resize2fs. What is left out
// are tests of tune2fs, e2undo and libext2fs (t_, u_, e_).
var folders = regexp.MustCompile(`^[fjdimr]_`)

const (
	leftOutName   = "left-out" // a file beside the samples: how many tests there are, then "NAME: why" for each without
	scriptTime    = 30 * time.Second
	maxScriptSize = 4 << 30 // bytes of an image with its holes
	maxScriptData = 64 << 20
	maxScriptUsed = 128 << 20 // bytes of a volume that are not free: all are read, several times
)

// keeper is run in place of e2fsck. Each argument that is a file is an image.
const keeper = `#!/bin/sh
for a in "$@"; do
	case $a in -*) continue ;; esac
	[ -f "$a" ] || continue
	n=$(ls "$KEEP" | wc -l)
	[ "$n" -lt 40 ] && cp --sparse=always "$a" "$KEEP/$(printf %03d "$n")"
done
exec e2fsck "$@"
`

// collect puts the samples of the package whose tests are below dir into out.
func collect(dir, out string) error {
	names, err := prepareTests(dir)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var left []string
	var failed error
	images, scripts := 0, 0
	var wg sync.WaitGroup
	slots := make(chan struct{}, 2)
	for _, name := range names {
		found, _ := filepath.Glob(filepath.Join(dir, "tests", name, "image.[gb]z*"))
		if len(found) > 0 {
			images++
			if err := os.Link(found[0], filepath.Join(out, name+filepath.Ext(found[0]))); err != nil { // other tests use it, too
				return err
			}
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			why, err := capture(dir, name, out)
			mu.Lock()
			defer mu.Unlock()
			failed = cmp.Or(failed, err)
			if scripts++; why != "" {
				scripts--
				left = append(left, name+": "+why+"\n")
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return failed
	}
	slices.Sort(left)
	head := fmt.Sprintf("of %d tests, %d have an image, the scripts of %d made one, %d are left out:\n", len(names), images, scripts, len(left))
	return os.WriteFile(filepath.Join(out, leftOutName), []byte(head+strings.Join(left, "")), 0o644)
}

// leftOut returns how many tests there are, and which gave no sample.
func leftOut(t *testing.T) string {
	t.Helper()
	dir, err := fetched()
	require.NoError(t, err)
	b, err := os.ReadFile(filepath.Join(dir, leftOutName))
	require.NoError(t, err)
	return string(b)
}

// prepareTests does what the package's Makefile does before its tests run, except building, and lists the tests.
func prepareTests(dir string) (names []string, err error) {
	tools := map[string][]string{"e2fsck": nil, "misc": {"mke2fs", "dumpe2fs", "tune2fs", "e2image", "e2undo", "chattr", "lsattr"},
		"debugfs": {"debugfs"}, "resize": {"resize2fs"}, "lib": nil}
	for sub, all := range tools {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
		for _, tool := range all {
			path, err := exec.LookPath(tool)
			if err != nil {
				return nil, fmt.Errorf("%s is missing: install it (make deps)", tool)
			}
			if err := os.Symlink(path, filepath.Join(dir, sub, tool)); err != nil {
				return nil, err
			}
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "e2fsck/e2fsck"), []byte(keeper), 0o755); err != nil {
		return nil, err
	}
	tests := filepath.Join(dir, "tests")
	one, err := os.ReadFile(filepath.Join(tests, "test_one.in"))
	if err != nil {
		return nil, err
	}
	one = append([]byte("#!/bin/sh\nHTREE=y\nQUOTA=y\nSRCDIR=.\nDIFF_OPTS=-u\nSIZEOF_TIME_T=8\nDD=dd\n"), one...)
	conf, err := os.ReadFile(filepath.Join(tests, "mke2fs.conf.in"))
	if err != nil {
		return nil, err
	}
	data, err := exec.Command("sh", filepath.Join(tests, "scripts/gen-test-data")).Output()
	if err != nil {
		return nil, fmt.Errorf("gen-test-data: %w", err)
	}
	for name, b := range map[string][]byte{"test_one": one, "mke2fs.conf": conf, "test_data.tmp": data} {
		if err := os.WriteFile(filepath.Join(tests, name), b, 0o755); err != nil {
			return nil, err
		}
	}
	all, err := os.ReadDir(tests)
	for _, e := range all {
		if e.IsDir() && folders.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// capture runs a test for its images. why says that there is none.
func capture(dir, name, out string) (why string, err error) {
	tests := filepath.Join(dir, "tests")
	if _, err := os.Stat(filepath.Join(tests, name, "is_slow_test")); err == nil {
		return "slow, its authors say", nil
	}
	keep, tmp := filepath.Join(dir, "keep-"+name), filepath.Join(dir, "tmp-"+name)
	for _, d := range []string{keep, tmp} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return "", err
		}
		defer os.RemoveAll(d)
	}
	ctx, cancel := context.WithTimeout(context.Background(), scriptTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "./test_one", "./"+name)
	cmd.Dir = tests
	cmd.Env = append(os.Environ(), "KEEP="+keep, "TMPDIR="+tmp)
	// Processes that a script leaves running are killed with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	_ = cmd.Run() // the test's result does not matter: other versions of the tools print other words
	if cmd.Process != nil {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	}
	if ctx.Err() != nil {
		return fmt.Sprintf("not finished after %v", scriptTime), nil
	}
	kept, err := filepath.Glob(filepath.Join(keep, "*"))
	if err != nil {
		return "", err
	}
	kept = slices.DeleteFunc(kept, func(f string) bool {
		var st unix.Stat_t
		if unix.Stat(f, &st) != nil || st.Size < 64<<10 {
			return true // not an image but another file of the test
		}
		big := st.Size > maxScriptSize || st.Blocks*512 > maxScriptData
		if big {
			why = fmt.Sprintf("its image has %d MiB, of them %d with data", st.Size>>20, st.Blocks>>11)
		} else if n := used(f); n > maxScriptUsed {
			big, why = true, fmt.Sprintf("its files have %d MiB", n>>20)
		}
		return big
	})
	if len(kept) == 0 {
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		return cmp.Or(why, "e2fsck is not asked: "+strings.TrimPrefix(lines[len(lines)-1], name+": ")), nil
	}
	for k, f := range slices.Compact([]string{kept[0], kept[len(kept)-1]}) {
		if k > 0 && sameFile(kept[0], f) {
			break
		}
		if err := os.Rename(f, filepath.Join(out, fmt.Sprintf("%s.%d.img", name, k+1))); err != nil {
			return "", err
		}
		kept[0] = filepath.Join(out, fmt.Sprintf("%s.%d.img", name, k+1))
	}
	return "", nil
}

// used returns how many bytes of a volume are not free, by its superblock; 0 if it has none.
func used(path string) int64 {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	b := make([]byte, disk.SuperblockSize)
	if _, err := f.ReadAt(b, disk.SuperblockOffset); err != nil {
		return 0
	}
	sb, err := disk.DecodeSuperblock(b)
	if err != nil || sb.FreeBlocksCount > sb.BlocksCount {
		return 0
	}
	return int64(sb.BlocksCount-sb.FreeBlocksCount) * int64(sb.BlockSize())
}

// sameFile reports whether two files have the same bytes.
func sameFile(a, b string) bool { return exec.Command("cmp", "-s", a, b).Run() == nil }
