package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const nobodyID = 65534

// compiled builds a program, or with -shared a library, from a few lines of C.
func (p *place) compiled(name, source string, flags ...string) string {
	p.t.Helper()
	require.NoError(p.t, os.WriteFile(p.path(name+".c"), []byte(source), 0o600))
	out, err := exec.Command("gcc", append([]string{"-O1", "-o", p.path(name), p.path(name + ".c")}, flags...)...).CombinedOutput()
	require.NoError(p.t, err, "%s", out)
	return p.path(name)
}

// TestRunKinds: programs that lanefs run's environment reaches in part or not at all.
func TestRunKinds(t *testing.T) {
	p := newPlace(t)
	test := p.installed("testexec")[0]
	require.NoError(t, os.Chmod(p.dir, 0o755))
	p.env = append(p.env, "LANEFS_CUFILE_SMALL=lanes", "LANEFS_CUFILE_MAP=0")
	img, mnt, other := p.image("image", 128), p.mkdir("mnt"), p.path("other")
	p.ok("mount", "--gpu", "host", "-o", "vram=48M,allow_other", img, mnt)
	file := filepath.Join(mnt, "file")
	require.NoError(t, os.WriteFile(file, pattern(), 0o644))
	require.NoError(t, os.WriteFile(other, pattern(), 0o644))
	says := func(env []string, want string, args ...string) (out, errs string) {
		t.Helper()
		had := p.env
		p.env = append(p.env[:len(p.env):len(p.env)], env...)
		out, errs, err := p.run(append([]string{"run", "--"}, args...)...)
		p.env = had
		require.NoError(t, err, errs)
		require.Regexp(t, want, errs)
		return out, errs
	}
	none := []string{"LANEFS_REAL_CUFILE="}
	const moved = `(?m)^lanefs run: LaneFS, stage: 1 MiB read, 0 bytes written; pread and pwrite: 2 MiB read, 0 bytes written `
	reads := []string{test, file, other, "1", "2"}

	// Static, and without an environment: nothing is said of calls that did not come here.
	static := p.compiled("static", `int main(void) { return 0; }`, "-static")
	says(none, `^lanefs run: the libraries were loaded by no process \(is the program static, or set-user-ID, or are they of another version\?\)`, static)
	says(none, `^lanefs run: no call of cuFile or hipFile was made, but for those of programs that are static, set-user-ID, or started without LD_PRELOAD\n$`, "sh", "-c", static)
	says(none, `^lanefs run: no call of cuFile or hipFile was made, but for`, "env", "-i", "/bin/sh", "-c", "exit 0")
	// With an environment of its own, of which only the libraries' part is kept.
	out, _ := says(none, moved, append([]string{"sh", "-c", `exec env -i LD_PRELOAD="$LD_PRELOAD" LD_LIBRARY_PATH="$LD_LIBRARY_PATH" LANEFS_ROADS="$LANEFS_ROADS" LANEFS_REAL_CUFILE= LANEFS_CUFILE_SMALL=lanes "$0" "$@"`}, reads...)...)
	require.Equal(t, "ok\n", out)

	// A script that does not say of what, from a directory of PATH in which we are.
	script, here := p.path("script"), filepath.Join(p.dir, "bin")
	require.NoError(t, os.WriteFile(script, []byte(`exec "$@"`), 0o755))
	says(none, moved, append([]string{script}, reads...)...)
	require.NoError(t, os.Mkdir(here, 0o755))
	require.NoError(t, os.Rename(script, filepath.Join(here, "script")))
	says(append(none, "PATH=:"+os.Getenv("PATH")), moved, append([]string{"env", "-C", here, p.bin, "run", "--", "script"}, reads...)...)
	// With AddressSanitizer, whose library is not the first.
	asan := p.compiled("asan", `#include <unistd.h>
		int main(int argc, char **argv) { return argc > 1 ? execv(argv[1], argv + 1) : 0; }`, "-fsanitize=address")
	for _, options := range []string{"", "exitcode=3"} {
		says(append(none, "ASAN_OPTIONS="+options), moved, append([]string{asan}, reads...)...)
	}

	// What is preloaded already stays so, after LaneFS's.
	var libs [2]string
	for i := range libs {
		libs[i] = p.compiled(fmt.Sprintf("lib%d.so", i), fmt.Sprintf(`#include <stdio.h>
			__attribute__((constructor)) static void here(void) { fputs("here %d\n", stderr); }`, i), "-shared", "-fPIC")
	}
	for _, between := range []string{":", " "} {
		_, errs := says(append(none, "LD_PRELOAD="+strings.Join(libs[:], between)), moved, reads...)
		require.Contains(t, errs, "here 0\n")
		require.Contains(t, errs, "here 1\n")
	}
	_, errs := says(append(none, "LD_PRELOAD="+filepath.Join(filepath.Dir(p.bin), "../lib/lanefs/libcufile.so.0")), moved, reads...)
	require.Equal(t, 1, strings.Count(errs, "lanefs run:"))

	// One that answers for the kernel, as fakeroot's does: it knows nothing of the attribute by which files of a mount are known.
	fake := p.compiled("fake.so", `#include <errno.h>
		#include <sys/types.h>
		ssize_t fgetxattr(int fd, const char *name, void *value, size_t size) { errno = ENODATA; return -1; }`, "-shared", "-fPIC")
	says(append(none, "LD_PRELOAD="+fake), moved, reads...)

	// Libraries in a directory whose name the loader would cut.
	bin := p.bin
	for _, c := range []struct{ name, fails string }{{"a b", ""}, {"a:b", "which the loader takes for several directories"}} {
		usr := p.mkdir(c.name)
		tool(t, "cp", "-r", filepath.Join(filepath.Dir(bin), ".."), filepath.Join(usr, "usr"))
		p.bin = filepath.Join(usr, "usr/bin/lanefs")
		if c.fails != "" {
			require.Contains(t, p.fails("run", "true"), c.fails)
		} else {
			says(none, moved, reads...)
		}
	}
	p.bin = bin

	if os.Geteuid() != 0 {
		t.Skip("needs root, to be other users")
	}
	// Of another user, who may not count.
	out, errs = says(none, `(?m)^lanefs: cuFile calls of process \d+ are not counted: LANEFS_ROADS: Permission denied$`,
		append([]string{"setpriv", "--reuid", itoa(nobodyID), "--regid", itoa(nobodyID), "--clear-groups"}, reads...)...)
	require.Equal(t, "ok\n", out)
	require.Equal(t, 1, strings.Count(errs, "not counted"))

	// Set-user-ID, with LaneFS's library for its own: it loads nothing that its caller has named.
	evil := p.compiled("evil.so", `#include <unistd.h>
		__attribute__((constructor)) static void here(void) { write(2, "evil\n", 5); }`, "-shared", "-fPIC")
	lib := filepath.Join(filepath.Dir(p.bin), "../lib/lanefs")
	set := p.path("set")
	tool(t, "gcc", "-std=gnu11", "-O1", "-I../../sdk/cufile", "-o", set, "../../sdk/cufile/testexec.c", filepath.Join(lib, "libcufile.so.0"), "-Wl,-rpath,"+lib)
	env := []string{"LANEFS_REAL_CUFILE=" + evil}
	own := exec.Command(set, file, other, "1", "2")
	own.Env = append(os.Environ(), env...)
	said, _ := own.CombinedOutput() // it is no library of the vendor's
	require.Contains(t, string(said), "evil\n")
	require.NoError(t, os.Chmod(set, 0o755|os.ModeSetuid))
	p.cred = &syscall.Credential{Uid: nobodyID, Gid: nobodyID}
	out, errs = says(env, `(?m)^lanefs run: the libraries were loaded by no process`, set, file, other, "1", "2")
	p.cred = nil
	require.Equal(t, "ok\n", out)
	require.NotContains(t, errs, "evil")
	p.ok("umount", mnt)
	fsck(t, img)
}
