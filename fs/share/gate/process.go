package gate

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

const (
	patience   = 5 * time.Second // for a foreign file system to let go of a descriptor
	maxLate    = 64              // closings of one user that last longer, before the user is refused
	maxLateAll = 2048            // of all users. Go gives up at 10,000 threads
)

// Every program that serves a mount can be its gate, tests too: so the process is made here, before main.
func init() {
	v, ok := os.LookupEnv(variable)
	if !ok {
		return
	}
	if err := run(v); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// process is the gate.
type process struct {
	dev  uint64 // of the mount
	null int    // /dev/null, in the place of what is foreign

	mu      sync.Mutex
	late    map[uint32]int // closings that outlasted patience, by user. Protected by mu
	lateAll int            // protected by mu
}

// run is the life of the process: it ends with the control socket.
func run(dev string) error {
	kept := unprivileged()
	called := append([]byte(processName), 0)
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&called[0])), 0, 0, 0) // for ps; /proc/self/exe made it "exe"
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)            // those are for the daemon, which may serve on
	p := &process{late: map[uint32]int{}}
	var err error
	if p.dev, err = strconv.ParseUint(dev, 10, 64); err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	if p.null, err = unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("%s: %w", os.DevNull, err)
	}
	control, err := connOf(controlFD)
	if err != nil {
		return fmt.Errorf("%s is set, but this is not lanefs's own process: %w", variable, err)
	}
	ready := "+"
	if kept != nil {
		ready += kept.Error()
	}
	if _, err := control.Write([]byte(ready)); err != nil {
		return err
	}
	var user [4]byte
	oob := make([]byte, unix.CmsgSpace(4*wire.MaxRights))
	for {
		n, oobn, _, _, err := control.ReadMsgUnix(user[:], oob)
		if err != nil || n != len(user) {
			return nil // the daemon has gone
		}
		fds, _ := wire.ParseRights(oob[:oobn])
		uid := binary.LittleEndian.Uint32(user[:])
		if len(fds) == 2 {
			go p.visit(uid, fds[0], fds[1])
			continue
		}
		go p.close(uid, fds)
	}
}

// unprivileged gives up all capabilities, in all threads: by becoming this executable once more, with none. What keeps it from
// that is a reason to say so, not to refuse service.
func unprivileged() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("PR_SET_NO_NEW_PRIVS", err)
	}
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have, none [2]unix.CapUserData
	if err := unix.Capget(&h, &have[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	if have[0].Permitted|have[1].Permitted == 0 {
		return nil
	}
	// Go's init functions run on the first thread: exec takes its capabilities for all, and gives none back.
	if err := unix.Capset(&h, &none[0]); err != nil {
		return os.NewSyscallError("capset", err)
	}
	return os.NewSyscallError("exec", unix.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// close closes descriptors that may block, and waits for that as long as it has patience: false if that was too short.
func (p *process) close(uid uint32, fds []int) bool {
	if len(fds) == 0 {
		return true
	}
	return p.apart(uid, func() { wire.CloseAll(fds) })
}

// apart runs f, which may never return, and says whether it did within patience.
func (p *process) apart(uid uint32, f func()) bool {
	done := make(chan struct{})
	go func() { f(); close(done) }()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
	}
	p.count(uid, 1)
	go func() { <-done; p.count(uid, -1) }()
	return false
}

func (p *process) count(uid uint32, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lateAll += n
	if p.late[uid] += n; p.late[uid] == 0 {
		delete(p.late, uid)
	}
}

// refusal is why a user is not served: nil where there is no reason.
func (p *process) refusal(uid uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.late[uid] >= maxLate:
		return fmt.Errorf("%d descriptors that you passed before are not closed yet, for their file systems do not answer: %w", p.late[uid], unix.EBUSY)
	case p.lateAll >= maxLateAll:
		return fmt.Errorf("%d descriptors that clients passed are not closed yet, for their file systems do not answer: %w", p.lateAll, unix.EBUSY)
	}
	return nil
}
