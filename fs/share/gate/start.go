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

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

const (
	// variable has the mount's device number in the environment of the process, and says that it is one; confined is set once the
	// process has given up what it does not need.
	variable = "LANEFS_GATE"
	confined = "LANEFS_GATE_CONFINED"
	// processName is what ps shows.
	processName = "lanefs-gate"

	// The process's descriptors, beside the standard ones.
	controlFD = 3
	listenFD  = 4
	abortFD   = 5 // what aborts the mount's connection; /dev/null where there is nothing
	firstFree = 6

	startTimeout = time.Minute
)

// died is what the process gets when the daemon dies, and how the daemon's death is seen.
const died = unix.SIGUSR1

// start starts the process and waits until it accepts clients.
func (g *Gate) start() (_ *wire.Conn, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("starting the process that receives clients' descriptors: %w", err)
		}
	}()
	if !ready.Load() {
		return nil, errors.New("this program did not call gate.RunIfChild at the beginning of main") // started again it would do its work twice
	}
	// Whatever a library opened without O_CLOEXEC, /dev/fuse above all, is not for any child of ours.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("close_range", err)
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
	defer theirs.Close()                  // or we would not see the process's end
	cmd := exec.Command("/proc/self/exe") // also when it was deleted
	cmd.Args = []string{processName}
	cmd.Env = []string{variable + "=" + strconv.FormatUint(g.dev, 10), "GOTRACEBACK=single",
		"GODEBUG=containermaxprocs=0,updatemaxprocs=0"} // or it would have files of the system open
	cmd.Dir = "/" // and not in the way of an unmount
	cmd.ExtraFiles = []*os.File{theirs, socket, abort}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: died}
	var said bytes.Buffer // read after Wait only
	cmd.Stderr = &said
	if err := g.run(cmd, &said); err != nil {
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

// run starts the process from a thread that lives as long as this process does: it is the end of its thread that a child is told
// of. A killed process's threads end at once but for those that cannot.
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
		// For ever, if one of its threads is stuck. The thread is not given back: it ends with this goroutine.
		if err := cmd.Wait(); err != nil {
			g.log.Error("share: the process that receives clients' descriptors has ended", "error", err, "stderr", said.String())
		}
	}()
	return <-started
}

// openAbort opens what aborts the connection of the mount with device number dev
// (Documentation/filesystems/fuse/fuse.rst, "Control filesystem"). Root needs no mount of it.
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
