package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestInstall: make install, with a umask that hides all from others, into directories whose names have spaces, and over an earlier installation, leaves files that others can read
// and programs that they can run.
func TestInstall(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("needs gcc: make deps installs it")
	}
	p := newPlace(t)
	require.NoError(t, os.Chmod(p.dir, 0o755))
	dest, prefix := p.path("a place"), "/opt/my programs"
	install := exec.Command("sh", "-c", `umask 077; exec "$@"`, "sh", "make", "-s", "-C", "../..", "-o", "build", "install", "BINARY="+p.bin, "DESTDIR="+dest, "PREFIX="+prefix)
	install.Env = append(p.env, "MAKEFLAGS=", "CFLAGS=-O1") // p's, by which the test's own binary is lanefs
	files := map[string]bool{}
	for round := range 2 {
		out, err := install.CombinedOutput()
		require.NoError(t, err, "round %d: %s", round, out)
		require.NoError(t, filepath.WalkDir(dest, func(name string, d fs.DirEntry, err error) error {
			require.NoError(t, err)
			st, err := os.Stat(name) // what a link names is there, too
			require.NoError(t, err)
			want := fs.FileMode(0o644)
			if d.IsDir() || st.Mode()&0o100 != 0 {
				want = 0o755
			}
			require.Equal(t, want, st.Mode().Perm(), name)
			rel, err := filepath.Rel(dest, name)
			files[rel] = true
			return err
		}))
		// An earlier installation may have left them so.
		require.NoError(t, os.Chmod(filepath.Join(dest, "usr/lib/modprobe.d/lanefs.conf"), 0o600))
		again := exec.Command(install.Path, install.Args[1:]...)
		again.Env = install.Env
		install = again
	}
	for _, name := range []string{"bin/lanefs", "lib/liblanefs.so.1", "lib/pkgconfig/lanefs.pc", "lib/lanefs/libcufile.so.0", "include/lanefs.h", "include/lanefs/cufile.h", "share/man/man8/mount.lanefs.8",
		"share/bash-completion/completions/lanefs", "lib/systemd/system/lanefs@.service"} {
		require.Contains(t, files, filepath.Join(prefix, name)[1:])
	}
	unit, err := os.ReadFile(filepath.Join(dest, prefix, "lib/systemd/system/lanefs@.service"))
	require.NoError(t, err)
	require.Contains(t, string(unit), `ExecStart="/opt/my programs/bin/lanefs" mount`)
	for _, args := range [][]string{{filepath.Join(dest, "usr/sbin/mount.lanefs"), "--help"}, {filepath.Join(dest, prefix, "bin/lanefs"), "run", "true"}} { // it finds its libraries
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = p.env
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%q: %s", args, out)
	}
	c := p.path("program.c")
	require.NoError(t, os.WriteFile(c, []byte("#include <lanefs.h>\nint main(void) { return !lanefs_error(); }\n"), 0o644))
	if _, err := exec.LookPath("pkg-config"); err == nil {
		cmd := exec.Command("sh", "-c", `eval "gcc -o \"$1\" \"$2\" $(pkg-config --cflags --libs lanefs)" && "$1"`, "sh", p.path("program"), c)
		cmd.Env = append(os.Environ(), "PKG_CONFIG_PATH="+filepath.Join(dest, prefix, "lib/pkgconfig"), "LD_LIBRARY_PATH="+filepath.Join(dest, prefix, "lib"))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	require.False(t, strings.Contains(string(unit), "/usr/bin/lanefs"))

	// What others have put there stays.
	require.NoError(t, os.WriteFile(filepath.Join(dest, prefix, "lib/lanefs/another"), nil, 0o644))
	uninstall := exec.Command("make", "-s", "-C", "../..", "-o", "build", "uninstall", "BINARY="+p.bin, "DESTDIR="+dest, "PREFIX="+prefix)
	uninstall.Env = install.Env
	out, err := uninstall.CombinedOutput()
	require.NoError(t, err, "%s", out)
	var left []string
	require.NoError(t, filepath.WalkDir(dest, func(name string, d fs.DirEntry, err error) error {
		if err == nil && (!d.IsDir() || d.Name() == "lanefs") {
			left = append(left, strings.TrimPrefix(name, dest+prefix+"/"))
		}
		return err
	}))
	require.Equal(t, []string{"lib/lanefs", "lib/lanefs/another"}, left)
}

// TestInstallElsewhere: the libraries go where LIBDIR says, those of lanefs run into a directory of their own there, in which lanefs run finds them. Without
// a C compiler nothing is placed, and the error says what leaves out what needs one.
func TestInstallElsewhere(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("needs gcc: make deps installs it")
	}
	p := newPlace(t)
	install := func(dest string, variables ...string) (string, error) {
		cmd := exec.Command("make", append([]string{"-s", "-C", "../..", "-o", "build", "install", "BINARY=" + p.bin, "DESTDIR=" + dest, "PREFIX=/opt/lane"}, variables...)...)
		cmd.Env = append(p.env, "MAKEFLAGS=", "CFLAGS=-O0")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, lib := range []string{"lib64", "lib/x86_64-linux-gnu"} {
		dest := p.path("dest-" + filepath.Base(lib))
		out, err := install(dest, "LIBDIR=/opt/lane/"+lib)
		require.NoError(t, err, out)
		require.FileExists(t, filepath.Join(dest, "opt/lane", lib, "liblanefs.so.1"))
		require.FileExists(t, filepath.Join(dest, "opt/lane", lib, "lanefs/libcufile.so.0"))
		require.NoFileExists(t, filepath.Join(dest, "opt/lane", lib, "libcufile.so.0"), "where the loader would take it for the vendor's")
		run := exec.Command(filepath.Join(dest, "opt/lane/bin/lanefs"), "run", "true")
		run.Env = p.env
		said, err := run.CombinedOutput()
		require.NoError(t, err, "%s", said)
	}
	dest := p.path("without")
	out, err := install(dest, "CC=no-compiler")
	require.Error(t, err)
	require.Contains(t, out, "or make install SDK=no")
	require.NoDirExists(t, dest)
	out, err = install(dest, "CC=no-compiler", "SDK=no")
	require.NoError(t, err, out)
	require.FileExists(t, filepath.Join(dest, "usr/sbin/mount.lanefs"))
	require.NoDirExists(t, filepath.Join(dest, "opt/lane/include"))
}
