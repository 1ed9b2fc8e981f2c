package hostile

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/lab/internal/drive"
)

// verdict is what e2fsck found.
type verdict struct {
	status int // its exit status; -1 if it was killed because it did not end
	kinds  map[string]bool
	text   string // the first lines
}

// saveImage writes an image to a file for e2fsck, in memory where there is a file system there: else e2fsck waits for the medium again and again.
func saveImage(t testing.TB, image *content) string {
	dir, err := os.MkdirTemp(drive.Memory(), "hostile-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	f, err := os.CreateTemp(dir, "*.img")
	require.NoError(t, err)
	require.NoError(t, image.save(f))
	require.NoError(t, f.Close())
	return f.Name()
}

// fsck runs e2fsck with the flags on the image file, which it may change.
func fsck(t testing.TB, file string, flags ...string) verdict {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), maxTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "e2fsck", append(flags, filepath.Base(file))...)
	cmd.Dir = filepath.Dir(file)
	cmd.WaitDelay = time.Second
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = w, w
	require.NoError(t, cmd.Start())
	w.Close()
	v := verdict{kinds: map[string]bool{}}
	lines := 0
	var text strings.Builder
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		if lines < 200 {
			text.WriteString(line)
		}
		if lines++; lines > 50_000 { // for some images e2fsck -n asks the same without end
			cancel()
			break
		}
		if k := kind(line); k != "" {
			v.kinds[k] = true
		}
		if err != nil {
			break
		}
	}
	_, _ = io.Copy(io.Discard, r)
	r.Close()
	_ = cmd.Wait()
	v.status, v.text = cmd.ProcessState.ExitCode(), text.String()
	return v
}

var fsckParts = regexp.MustCompile(`'[^']*'|"[^"]*"|(/|\.\.\.|\?\?\?|<)[^ ,]*|0x[0-9a-f]+|[-+]?\(?\d+(--\d+\))?|\([^)]*\)`)

// fsckTime is a time as e2fsck prints it, ctime(3)'s: days before the 10th have two spaces before them.
var fsckTime = regexp.MustCompile(`[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}`)

// kind returns the kind of problem that a line of e2fsck reports: the line without names, numbers and times.
func kind(line string) string {
	line = fsckTime.ReplaceAllString(strings.TrimSpace(line), "0")
	for _, q := range []string{"  ", "? "} { // the question that follows
		line, _, _ = strings.Cut(line, q)
	}
	switch {
	case line == "", strings.HasPrefix(line, "e2fsck "), strings.HasPrefix(line, "Pass "), strings.Contains(line, ".img:"),
		strings.HasPrefix(line, "Fix"), strings.HasPrefix(line, "IGNORED"), strings.HasPrefix(line, "Clear"),
		strings.HasPrefix(line, "File /"): // of one problem, which is named before
		return ""
	}
	line = strings.Replace(line, " for group #", " ", 1) // counters are wrong together
	k := strings.Join(strings.Fields(fsckParts.ReplaceAllString(line, "#")), " ")
	return strings.TrimRight(strings.ReplaceAll(k, " #", ""), ".,")
}

// follows says which kinds of damage may turn into others when the damaged files are changed, by any driver: names that the
// inode's link count misses, blocks that two files had and one has now.
var follows = map[string][]string{
	"Unattached inode":          {"Inode ref count is, should be"},
	"Connect to":                {"Inode ref count is, should be"},
	"Block bitmap differences:": {"Multiply-claimed block"},
	// Two directories in one block: what is removed from one is missing in the other. Two names of one directory: with one goes it.
	"Entry in) has deleted# inode": {"Multiply-claimed block", "Entry in) is a link to directory"},
}

// worse lists the kinds of problems of after that before does not have.
func worse(before, after verdict) (out []string) {
	for k := range after.kinds {
		if !before.kinds[k] && !slices.ContainsFunc(follows[k], func(f string) bool { return has(before, f) }) {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// diagnose returns what e2fsck -n finds after it has replayed the log.
func diagnose(t testing.TB, image *content) verdict {
	t.Helper()
	file := saveImage(t, image)
	defer os.Remove(file)
	fsck(t, file, "-y", "-E", "journal_only")
	return fsck(t, file, "-fn")
}

func has(v verdict, start string) bool {
	for k := range v.kinds {
		if start != "" && strings.HasPrefix(k, start) {
			return true
		}
	}
	return false
}

// repaired returns the image after e2fsck -fy, and whether e2fsck -fn finds nothing wrong then.
func repaired(t testing.TB, image *content) (out *content, clean bool) {
	t.Helper()
	file := saveImage(t, image)
	defer os.Remove(file)
	for range 2 { // some damage needs two runs
		fsck(t, file, "-fy")
		if clean = fsck(t, file, "-fn").status == 0; clean {
			break
		}
	}
	return load(t, file), clean
}

func TestKind(t *testing.T) {
	for _, line := range []string{
		"  (inode #12, mod time Tue Dec  1 00:14:59 2026)\n",
		"  (inode #12, mod time Mon Nov 30 23:59:59 2026)\n",
		"  (inode #4294967295, mod time Thu Jan  1 00:00:00 1970)\n",
	} {
		require.Equal(t, kind("(inode #12, mod time 0)"), kind(line), line)
	}
	require.Equal(t, "Inode, i_size is, should be", kind("Inode 12, i_size is 33, should be 25227264.  Fix? no\n"))
}

func (v verdict) String() string { return fmt.Sprintf("status %d:\n%s", v.status, v.text) }
