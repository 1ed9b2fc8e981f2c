package made

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestKey: it is another one for other contents, words and tools, and the same for the same contents elsewhere.
func TestKey(t *testing.T) {
	tree := func(source, header, deep string) string {
		dir := t.TempDir()
		for name, text := range map[string]string{"a.c": source, "a.h": header, "below/b": deep, "lib.a": "x"} {
			require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
		}
		return dir
	}
	key := func(tool string, words ...string) string {
		k, err := Key([]string{tool}, words...)
		require.NoError(t, err)
		return k
	}
	dir, same := tree("1", "2", "3"), tree("1", "2", "3")
	source, header, deep := tree("x", "2", "3"), tree("1", "x", "3"), tree("1", "2", "x")
	for name, of := range map[string]func(dir string) []string{
		"source":  func(dir string) []string { return []string{"-O1", dir + "/a.c"} },
		"include": func(dir string) []string { return []string{"-I" + dir} },
		"folder":  func(dir string) []string { return []string{dir} },
		"archive": func(dir string) []string { return []string{dir + "/lib.a"} },
	} {
		require.Equal(t, key("sh", of(dir)...), key("sh", of(same)...), name)
		require.Equal(t, name == "source" || name == "folder", key("sh", of(dir)...) != key("sh", of(source)...), name)
		require.Equal(t, name != "archive", key("sh", of(dir)...) != key("sh", of(header)...), name)
		require.Equal(t, name == "folder", key("sh", of(dir)...) != key("sh", of(deep)...), name)
	}
	require.NotEqual(t, key("sh", "-O1"), key("sh", "-O2"))
	require.NotEqual(t, key("sh", "-O1"), key("ls", "-O1"))
	_, err := Key([]string{"no-such-compiler"})
	require.ErrorIs(t, err, exec.ErrNotFound)
}

// TestIn: what was made is not made again, what failed is not kept, and what nobody uses goes.
func TestIn(t *testing.T) {
	all := t.TempDir()
	made := 0
	one := func(dir string) error {
		made++
		return os.WriteFile(filepath.Join(dir, "file"), nil, 0o644)
	}
	failed := errors.New("failed")
	_, err := in(all, "a", func(string) error { return failed })
	require.ErrorIs(t, err, failed)
	dir, err := in(all, "a", one)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, "file"))
	old := time.Now().Add(-unused - time.Hour)
	require.NoError(t, os.Chtimes(dir, old, old))
	again, err := in(all, "a", one) // which makes it new
	require.NoError(t, err)
	require.Equal(t, dir, again)
	require.Equal(t, 1, made)
	other, err := in(all, "b", one)
	require.NoError(t, err)
	require.DirExists(t, dir)
	require.NoError(t, os.Chtimes(dir, old, old))
	_, err = in(all, "c", one)
	require.NoError(t, err)
	require.NoDirExists(t, dir)
	require.DirExists(t, other)
	left, err := os.ReadDir(all)
	require.NoError(t, err)
	require.Len(t, left, 2)
}

// TestInMeanwhile: of two that make the same at the same time one's is there in the end, whole.
func TestInMeanwhile(t *testing.T) {
	all := t.TempDir()
	dir, err := in(all, "a", func(string) error {
		_, err := in(all, "a", func(dir string) error { return os.WriteFile(filepath.Join(dir, "first"), nil, 0o644) })
		return err
	})
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, "first"))
}

// TestCompile: a source that changed is compiled again, and what a compiler says is in the error.
func TestCompile(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("needs cc: make deps installs it")
	}
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := t.TempDir()
	source, program := filepath.Join(dir, "a.c"), filepath.Join(dir, "a")
	says := func(text string) string {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "a.h"), []byte("#define TEXT \""+text+"\"\n"), 0o644))
		require.NoError(t, os.WriteFile(source, []byte("#include <stdio.h>\n#include \"a.h\"\nint main(void) { puts(TEXT); }\n"), 0o644))
		require.NoError(t, Compile(program, nil, "cc", source))
		out, err := exec.Command(program).Output()
		require.NoError(t, err)
		return string(out)
	}
	require.Equal(t, "one\n", says("one"))
	require.Equal(t, "two\n", says("two"))
	require.Equal(t, "one\n", says("one"))
	require.NoError(t, os.WriteFile(source, []byte("int main(void) { return none; }\n"), 0o644))
	require.ErrorContains(t, Compile(program, nil, "cc", source), "none")
}
