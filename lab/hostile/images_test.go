package hostile

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// mountLog is the log of a mounted volume.
type mountLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *mountLog) logger() *slog.Logger {
	return disktest.Logger(func(line string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, line)
	})
}

// corruptions returns the number of lines that report corruption.
func (l *mountLog) corruptions() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.lines {
		if strings.Contains(s, "read-only now") {
			n++
		}
	}
	return n
}

// look tours an image that is mounted read-only. The error is Open's.
func look(t *testing.T, image *content) (*tour, *mountLog, error) {
	t.Helper()
	m := newMedium(image, true)
	var w *tour
	var l mountLog
	var err error
	bounded(t, func() {
		var v *ext4.FS
		if v, err = ext4.Open(m, ext4.Options{ReadOnly: true, Log: l.logger()}); err != nil {
			return
		}
		w = walkAll(v)
		if cerr := v.Close(); cerr != nil {
			t.Errorf("closing a read-only mount: %v", cerr)
		}
	})
	checkMedium(t, m)
	if len(m.written) > 0 {
		t.Error("a read-only mount has written")
	}
	if err == nil {
		checkErrors(t, w.errs, &l, false)
	}
	return w, &l, err
}

func checkMedium(t *testing.T, m *medium) {
	t.Helper()
	require.NoError(t, m.outside, "an invalid request")
	require.LessOrEqual(t, m.requests, maxRequests, "requests without end")
	require.Zero(t, m.bufs.Load(), "buffers not released")
}

// checkErrors requires that every error is one that corruption may cause, and that the log reports corruption once. The log may
// also report a directory whose index was ignored, which causes no error. With left there are files without names that could
// not be freed: corruption there is only logged.
func checkErrors(t *testing.T, errs []error, l *mountLog, left bool) {
	t.Helper()
	corrupt := false
	for _, err := range errs {
		corrupt = corrupt || errors.Is(err, ext4.ErrCorrupt)
		if !expected(err) {
			t.Errorf("unexpected: %v", err)
		}
	}
	want := 0
	if corrupt {
		want = 1
	}
	index := slices.ContainsFunc(l.lines, func(s string) bool { return strings.Contains(s, "directory ") })
	if n := l.corruptions(); n != want && !(n == 1 && (index || left)) {
		t.Errorf("%d lines of the log report corruption, not %d: %q", n, want, l.lines)
	}
}

// TestImages reads, checks and changes the damaged images of e2fsprogs: make test a sixth of them, which says the seed.
func TestImages(t *testing.T) {
	disktest.Tool(t, "e2fsck")
	all := samples(t)
	var mu sync.Mutex
	count, taken := map[string]int{}, 0
	t.Run("all", func(t *testing.T) {
		for k, s := range all {
			if !disktest.Turn(k, 6) {
				continue
			}
			taken++
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				how := takeOn(t, s)
				mu.Lock()
				defer mu.Unlock()
				count[how]++
			})
		}
	})
	t.Logf("%d of %d images: %v", taken, len(all), count)
	t.Log(leftOut(t))
}

// leftBehind is damage that e2fsck does not find and that the kernel refuses, too.
var leftBehind = map[string]string{
	"f_ea_inode_self_ref": "a directory names it, but it holds the value of an attribute",
}

// misjudged are damaged images that e2fsck calls clean. The kernel's changes to them have the same effect.
var misjudged = map[string]string{
	"f_resize_inode.2":    "the resize inode has blocks that the bitmaps call free: e2fsck sees it once something else is in them",
	"f_create_symlinks.2": "e2fsck does not count the attribute block of a symlink with inline data",
}

// takeOn tours a sample, changes copies of it, and returns how it mounts.
func takeOn(t *testing.T, s sample) string {
	image := s.image(t)
	if image.size == 0 {
		t.Fatalf("%s is empty", s.path)
	}
	says := inspect(t, image)
	seen, log, err := look(t, image)
	if err != nil {
		require.Equal(t, ext4.Refused, says)
		t.Logf("refused: %v", err)
		m := newMedium(image, false)
		bounded(t, func() {
			if v, err := ext4.Open(m, ext4.Options{}); err == nil {
				_ = v.Close()
				t.Error("refused for reading, but mounts for writing")
			}
		})
		return "refused"
	}
	for _, err := range seen.errs {
		t.Log(err)
	}
	before := diagnose(t, image)
	fixed, clean := repaired(t, image)
	whole := map[string]string{}
	if clean {
		w, _, err := look(t, fixed)
		switch {
		case err != nil:
			t.Logf("refused after e2fsck -fy: %v", err)
		default:
			for _, err := range w.errs {
				if left := leftBehind[s.name]; left == "" || !strings.Contains(err.Error(), left) {
					t.Errorf("e2fsck -fy made it whole, but: %v", err)
				}
			}
			for f, facts := range w.files { // what e2fsck did not touch
				if seen.files[f] == facts {
					whole[f] = facts
				}
			}
		}
	}
	p := patient{name: s.name, image: image, seen: seen, before: before, clean: clean, whole: whole}
	p.fast = slices.ContainsFunc(log.lines, func(s string) bool { return strings.Contains(s, "fast commits") })
	how := p.treat(t, "add", (*churn).add)
	if how != "refused for writing" {
		require.EqualValues(t, how, says, "lanefs check says otherwise")
	}
	p.treat(t, "change", (*churn).change)
	return how
}

// inspect examines an image as `lanefs check` does, and compares the result with that of mounting it.
func inspect(t *testing.T, image *content) (says ext4.Support) {
	t.Helper()
	m := newMedium(image, true)
	says = ext4.Refused
	bounded(t, func() {
		in, v, err := ext4.Inspect(m)
		if err != nil {
			return // no ext4 at all
		}
		if says = in.Mount; v == nil {
			return
		}
		files := 0
		_ = v.FreeExtents(func(uint64) {})
		_ = v.FileExtents(func(uint32, uint64, int, error) { files++ }, func(uint64, uint64) bool { return files < maxNames })
		if err := v.Close(); err != nil {
			t.Errorf("closing what was mounted for reading: %v", err)
		}
	})
	checkMedium(t, m)
	if len(m.written) > 0 {
		t.Error("check has written")
	}
	return says
}
