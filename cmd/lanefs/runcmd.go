package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// What lanefs run puts before a program. sdk/cufile makes them.
var runLibraries = []string{"libcufile.so.0", "libhipfile.so.0"}

const signalled = 128 // and the signal's number: the status of a program that a signal has ended, as a shell has it

func runCommand() *cobra.Command {
	var trace bool
	c := &cobra.Command{
		Use:   "run [--trace] [--] PROGRAM [ARG]...",
		Short: "run a program whose cuFile or hipFile calls go to LaneFS",
		Long: `Runs PROGRAM with LaneFS's libcufile and libhipfile in place of the vendors' libraries, by LD_PRELOAD and LD_LIBRARY_PATH. LaneFS serves the files of a
LaneFS mount; all others go to the vendor's library, or by pread and pwrite if there is none. At the end one line on standard
error says how many bytes took which path, including those of the program's children. Signals are passed on.

The exit status is the program's; 128 plus the signal's number if a signal ended it, 127 if there is no such program, 126 if it cannot be executed.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("%s: want PROGRAM", c.Name())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			code, err := runProgram(args, trace)
			if err == nil && code != 0 {
				err = &exitError{status: code}
			}
			return err
		},
	}
	c.Flags().SetInterspersed(false)
	c.Flags().BoolVar(&trace, "trace", false, "print a line for each call on standard error")
	return c
}

// runDirectory finds the libraries: beside this binary, or where make install puts them.
func runDirectory() (string, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", err
	}
	bin := filepath.Dir(self)
	prefix := filepath.Dir(bin)
	tried := []string{bin, filepath.Join(prefix, "lib/lanefs"), filepath.Join(bin, "build/sdk-cufile")}
	for _, lib := range []string{"lib*/lanefs", "lib/*/lanefs"} { // make install LIBDIR=…: lib64, lib/x86_64-linux-gnu
		found, _ := fs.Glob(os.DirFS(prefix), lib)
		for _, dir := range found {
			if dir = filepath.Join(prefix, dir); !slices.Contains(tried, dir) {
				tried = append(tried, dir)
			}
		}
	}
	for _, dir := range tried {
		if _, err := os.Stat(filepath.Join(dir, runLibraries[0])); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%s is not in %s: make install puts it there, make -C sdk/cufile builds it", runLibraries[0], strings.Join(tried, ", "))
}

// runEnvironment is the program's: env with the libraries in dir before all others. The loader takes a space for the end of a name in LD_PRELOAD, but not in
// LD_LIBRARY_PATH: names without a directory are found by that.
func runEnvironment(env []string, dir, roads string, trace bool) []string {
	var preload []string
	for _, name := range runLibraries {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			if !strings.Contains(dir, " ") {
				name = filepath.Join(dir, name)
			}
			preload = append(preload, name)
		}
	}
	// AddressSanitizer's library wants to be the first one that is loaded, because others may have functions of the same names. These have none.
	set := map[string]string{"LD_PRELOAD": strings.Join(preload, ":"), "LD_LIBRARY_PATH": dir, "ASAN_OPTIONS": "verify_asan_link_order=0", roadsEnv: roads}
	if trace {
		set["LANEFS_TRACE"] = "1"
	}
	var out []string
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		if first, ours := set[name]; ours {
			if value != "" && name != roadsEnv && name != "LANEFS_TRACE" {
				set[name] = first + ":" + value
			}
			continue
		}
		out = append(out, e)
	}
	for name, value := range set {
		out = append(out, name+"="+value)
	}
	return out
}

// runProgram runs a program to its end, and says which roads its bytes took. It returns the program's status.
func runProgram(args []string, trace bool) (int, error) {
	dir, err := runDirectory()
	if err != nil {
		return 0, err
	}
	if strings.ContainsAny(dir, ":;") {
		return 0, fmt.Errorf("the libraries are in %q, which the loader takes for several directories: install LaneFS elsewhere", dir)
	}
	r, err := newRoads(roadsDirs()...)
	if err != nil {
		return 0, err
	}
	defer r.close()
	env := runEnvironment(os.Environ(), dir, r.path, trace)
	cmd := runCommandOf(env, args...)
	// Before the program starts: a signal that comes meanwhile must not end this process alone.
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2)
	defer signal.Stop(signals)
	err = cmd.Start()
	if errors.Is(err, unix.ENOEXEC) { // a script that does not say of what, as to execvp
		cmd = runCommandOf(env, append([]string{"/bin/sh", cmd.Path}, args[1:]...)...)
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lanefs:", oneLine(fmt.Errorf("run: %w", err)))
		if args[0] == "" || errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			return 127, nil
		}
		return 126, nil
	}
	ended := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-signals:
				if !(s == unix.SIGINT || s == unix.SIGQUIT) || !fromTerminal() {
					_ = cmd.Process.Signal(s)
				}
			case <-ended:
				return
			}
		}
	}()
	err = cmd.Wait()
	close(ended)
	fmt.Fprintln(os.Stderr, "lanefs run:", r)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	if w := cmd.ProcessState.Sys().(syscall.WaitStatus); w.Signaled() {
		return signalled + int(w.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

// runCommandOf is a program with this one's files, found as execvp finds it.
func runCommandOf(env []string, args ...string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	if errors.Is(cmd.Err, exec.ErrDot) { // PATH has the directory in which we are, and the user's PATH it is
		cmd.Err = nil
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdin, os.Stdout, os.Stderr, env
	return cmd
}

// fromTerminal: the keys of a terminal reach all processes of its foreground group, so the program has their signals already.
func fromTerminal() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
