package hostile

import (
	"archive/tar"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The samples come from the source package of e2fsprogs that this Debian offers, fetched once, with apt under a
// configuration of its own, into the cache outside of the checkout. They are under the GPL and are not part of LaneFS.

// sample is a damaged image: compressed in a file as the package has it, or a file with holes, as a test's script made it.
type sample struct{ name, path string }

// image unpacks the sample.
func (s sample) image(t testing.TB) *content {
	if strings.HasSuffix(s.path, ".img") {
		return load(t, s.path)
	}
	f, err := os.Open(s.path)
	require.NoError(t, err)
	defer f.Close()
	var r io.Reader = bzip2.NewReader(f)
	if strings.HasSuffix(s.path, ".gz") {
		r, err = gzip.NewReader(f)
		require.NoError(t, err)
	}
	c, err := streamed(r)
	require.NoError(t, err)
	return c
}

var fetched = sync.OnceValues(fetch)

// samples lists all of them.
func samples(t testing.TB) []sample {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: -short")
	}
	dir, err := fetched()
	if err != nil {
		t.Skipf("SKIPPED: e2fsprogs' damaged images could not be fetched: %v", err)
	}
	var out []sample
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, f := range files {
		if name := f.Name(); name != leftOutName {
			out = append(out, sample{strings.TrimSuffix(name, filepath.Ext(name)), filepath.Join(dir, name)})
		}
	}
	require.NotEmpty(t, out, dir)
	return out
}

// fetch returns the directory of the samples.
func fetch() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	base = filepath.Join(base, "lanefs")
	dir := filepath.Join(base, "e2fsprogs-samples-1") // another number when what is in it changes
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", err
	}
	lock, err := os.Create(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil // another process made it meanwhile
	}
	work, err := os.MkdirTemp(base, "apt-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	source, err := aptSource(work, "e2fsprogs")
	if err != nil {
		return "", err
	}
	out := filepath.Join(work, "images")
	if err := os.Mkdir(out, 0o755); err != nil {
		return "", err
	}
	if err := unpack(source, work); err != nil {
		return "", fmt.Errorf("%s: %w", filepath.Base(source), err)
	}
	if err := collect(work, out); err != nil {
		return "", fmt.Errorf("%s: %w", filepath.Base(source), err)
	}
	_ = os.RemoveAll(filepath.Join(base, "e2fsprogs-images")) // their former name
	return dir, os.Rename(out, dir)
}

// aptSource downloads a source package into dir, asking the servers that the system's apt uses, and returns the path of
// its original tar file.
func aptSource(dir, pkg string) (string, error) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return "", errors.New("there is no apt-get: a Debian system is needed")
	}
	parts := filepath.Join(dir, "sources.list.d")
	for _, d := range []string{parts, filepath.Join(dir, "lists/partial"), filepath.Join(dir, "cache/archives/partial")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return "", err
		}
	}
	lists, _ := filepath.Glob("/etc/apt/sources.list.d/*")
	for _, f := range append(lists, "/etc/apt/sources.list") {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		b = regexp.MustCompile(`(?m)^deb\s`).ReplaceAll(b, []byte("deb-src "))
		b = regexp.MustCompile(`(?m)^Types:.*$`).ReplaceAll(b, []byte("Types: deb-src"))
		if err := os.WriteFile(filepath.Join(parts, filepath.Base(f)), b, 0o644); err != nil {
			return "", err
		}
	}
	apt := func(args ...string) error {
		for _, o := range []string{"Dir::State::Lists=" + filepath.Join(dir, "lists"), "Dir::Cache=" + filepath.Join(dir, "cache"),
			"Dir::Etc::SourceList=/dev/null", "Dir::Etc::SourceParts=" + parts, "APT::Sandbox::User=root",
			"Acquire::Retries=2", "Acquire::http::Timeout=20", "Acquire::https::Timeout=20"} {
			args = append(args, "-o", o)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "apt-get", append(args, "-q")...)
		cmd.Dir = dir
		cmd.WaitDelay = time.Second
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			return fmt.Errorf("apt-get %s: %w: %s", args[0], err, lines[len(lines)-1])
		}
		return nil
	}
	uerr := apt("update") // one server of several may fail
	if err := apt("source", "--download-only", pkg); err != nil {
		return "", errors.Join(err, uerr)
	}
	found, _ := filepath.Glob(filepath.Join(dir, pkg+"_*.orig.tar.gz"))
	if len(found) != 1 {
		return "", fmt.Errorf("the source package of %s has no .orig.tar.gz", pkg)
	}
	return found[0], nil
}

// unpack extracts tests/ of a source archive into dir.
func unpack(archive, dir string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		_, name, _ := strings.Cut(h.Name, "/")
		if h.Typeflag != tar.TypeReg || !strings.HasPrefix(name, "tests/") || !filepath.IsLocal(name) {
			continue
		}
		b, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, b, 0o755); err != nil {
			return err
		}
	}
}
