package gate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

const (
	// variable is set in the environment of the process. Its value is the mount's device number. confined is set after confine.
	variable = "LANEFS_GATE"
	confined = "LANEFS_GATE_CONFINED"
	// ProcessName is what ps shows.
	ProcessName = "lanefs-gate"

	// The process's descriptors, beside the standard ones.
	controlFD = 3
	listenFD  = 4
	abortFD   = 5 // the file that aborts the mount's connection; /dev/null if there is none
	firstFree = 6

	startTimeout = time.Minute
)

// program is this one. The name works if the file was deleted, too.
var program = "/proc/self/exe"

// parentDied is the signal that the process receives when the daemon dies.
const parentDied = unix.SIGUSR1

// start starts the process and waits until it accepts clients.
func (g *Gate) start() (_ *wire.Conn, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("starting the process that receives clients' descriptors: %w", wire.Forbidden(err))
		}
	}()
	if !ready.Load() {
		return nil, errors.New("this program did not call gate.RunIfChild at the beginning of main") // started again it would do its work twice
	}
	// A library may have opened descriptors without O_CLOEXEC, such as /dev/fuse. The child must not inherit them.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("close_range", err)
	}
	if err := needed(); err != nil {
		return nil, err
	}
	l, err := g.listen()
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	socket, err := l.File()
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	abort, why := openAbort(g.dev)
	if why != nil {
		g.log.Warn("share: the mount's connection cannot be aborted if the daemon is killed", "error", why)
		if abort, err = os.Open(os.DevNull); err != nil {
			return nil, err
		}
	}
	defer abort.Close()
	ours, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program)
	cmd.Args = []string{ProcessName}
	cmd.Env = []string{variable + "=" + strconv.FormatUint(g.dev, 10), "GOTRACEBACK=single",
		"GODEBUG=containermaxprocs=0,updatemaxprocs=0"} // else Go's runtime keeps files of cgroups open
	cmd.Dir = "/" // must not keep a mount busy
	cmd.ExtraFiles = []*os.File{theirs, socket, abort}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: parentDied}
	var said bytes.Buffer // read after Wait only
	cmd.Stderr = &said
	err = g.run(cmd, &said)
	theirs.Close() // else Read would not see the end of the process
	if err != nil {
		ours.Close()
		return nil, err
	}
	var ready [256]byte
	ours.SetReadDeadline(time.Now().Add(startTimeout))
	n, err := ours.Read(ready[:])
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		ours.Close()
		_ = cmd.Process.Kill()
		return nil, fmt.Errorf("it did not say that it was ready: %w", err)
	}
	ours.SetReadDeadline(time.Time{})
	if text := string(ready[1:n]); text != "" {
		g.log.Warn("share: the process that receives clients' descriptors keeps what it does not need", "error", text)
	}
	return ours, nil
}

// needed makes calls of the process's and of its start that would fail there without a word of what they were: a filter that the daemon has from outside is
// the process's, too.
func needed() error {
	var st unix.Statx_t // which says whose a client's descriptor is
	if err := unix.Statx(unix.AT_FDCWD, "/", unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st); err != nil {
		return os.NewSyscallError("statx", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var now int32
	err := unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(now), 0, 0, 0) // no change
	}
	return os.NewSyscallError("prctl", err)
}

// run starts the process from a thread that lives as long as the daemon, because PR_SET_PDEATHSIG is sent when the parent thread ends.
// When the daemon is killed its threads end at once, except those that wait in the kernel.
func (g *Gate) run(cmd *exec.Cmd, said *bytes.Buffer) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			runtime.UnlockOSThread()
			return
		}
		// Wait may never return, if a thread of the process is stuck. The locked thread ends with this goroutine.
		if err := cmd.Wait(); err != nil {
			g.log.Error("share: the process that receives clients' descriptors has ended", "error", err, "stderr", beginning(said.String()))
		}
	}()
	return <-started
}

// beginning is what a log line has room for: of a process that Go's runtime ended, the reason.
func beginning(text string) string { return text[:min(len(text), 200)] }

// openAbort opens the file that aborts the connection of the mount with device number dev
// (Documentation/filesystems/fuse/fuse.rst, "Control filesystem"). For root the control file system need not be mounted.
func openAbort(dev uint64) (*os.File, error) {
	name := filepath.Join(strconv.Itoa(int(unix.Minor(dev))), "abort")
	f, err := os.OpenFile(filepath.Join("/sys/fs/fuse/connections", name), os.O_WRONLY, 0)
	if err == nil || !errors.Is(err, os.ErrNotExist) || os.Geteuid() != 0 {
		return f, err
	}
	fs, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, os.NewSyscallError("fsconfig", err)
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	defer unix.Close(root)
	fd, err := unix.Openat(root, name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open fusectl's "+name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
