package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/lab/internal/drive"
	"github.com/lanefs/lanefs/lab/internal/image"
)

type config struct {
	Time, Bound time.Duration
	Attackers   int
	Rounds      int   // 0: as many as fit into Time
	Steps       int64 // of attackers, after which a round ends; 0: after roundTime only
	Seed        int64
	IOUring     string // of the mount option
	Lanefs      string
	Say         func(format string, args ...any)
}

// arena is a volume, its mount, and the processes that attack it.
type arena struct {
	config
	dir, image, mnt string
	pid             int // of the daemon
	rng             *rand.Rand
	steps           atomic.Int64
	checks          int

	mu        sync.Mutex
	attackers []*exec.Cmd // protected by mu
	ending    bool        // protected by mu
	reaped    sync.WaitGroup
}

// roundTime is how long a mount lives before it is unmounted, or its daemon killed.
const roundTime = 8 * time.Second

// bound is how long another user's operation may take, if nothing else is asked for: far more than one does on a busy machine, which has taken more than 20 s for a mount that nobody attacked. Who is held up by an
// attacker waits for ever, for attackers come again.
const bound = 2 * time.Minute

func run(c config) (err error) {
	dir, err := os.MkdirTemp(drive.Memory(), "lanefs-attack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o711); err != nil {
		return err
	}
	a := &arena{config: c, dir: dir, image: filepath.Join(dir, "image"), mnt: filepath.Join(dir, "mnt"), rng: rand.New(rand.NewPCG(uint64(c.Seed), 1))}
	a.Say("seed %d", c.Seed)
	if err := errors.Join(os.Mkdir(a.mnt, 0o755), os.WriteFile(a.image, nil, 0o600), os.Truncate(a.image, 256<<20)); err != nil {
		return err
	}
	if _, err := drive.Run("mkfs.ext4", "-q", "-F", "-b", "4096", a.image); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.cleanUp()) }()
	begun := time.Now()
	for round := 0; ; round++ {
		left := c.Time - time.Since(begun)
		if c.Rounds > 0 && round == c.Rounds || c.Rounds == 0 && c.Time > 0 && round > 0 && left <= 0 {
			break
		}
		if c.Rounds > 0 || c.Time == 0 || left > roundTime {
			left = roundTime
		}
		if err := a.round(round, left); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	if err := image.Check(a.image); err != nil {
		return err
	}
	a.Say("%d steps of attackers, %d checks, in %v: no other user was held up", a.steps.Load(), a.checks, time.Since(begun).Round(time.Second))
	if a.steps.Load() == 0 {
		return errors.New("no attacker has done a step")
	}
	return nil
}

// lanefs runs the binary, which must end within the bound.
func (a *arena) lanefs(args ...string) (string, error) {
	cmd := exec.Command(a.Lanefs, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			err = fmt.Errorf("lanefs %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out.Bytes()))
		}
		return out.String(), err
	case <-time.After(a.Bound):
		_ = cmd.Process.Kill()
		return "", fmt.Errorf("lanefs %s has not ended within %v", strings.Join(args, " "), a.Bound)
	}
}

// round is a mount from beginning to end.
func (a *arena) round(n int, length time.Duration) error {
	options := "vram=64M,io_uring=" + a.IOUring + ",log=" + filepath.Join(a.dir, "log")
	if n%2 == 1 {
		options += ",writeback_cache"
	}
	if _, err := a.lanefs("mount", "--gpu", "host", "-o", options, a.image, a.mnt); err != nil {
		return err
	}
	if err := drive.RequireTransport(a.Lanefs, a.mnt, a.IOUring); err != nil {
		return err
	}
	out, err := a.lanefs("stat", "--json", a.mnt)
	if err != nil {
		return err
	}
	var stat struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(out), &stat); err != nil || stat.PID == 0 {
		return fmt.Errorf("lanefs stat --json: %w: %s", err, out)
	}
	a.pid = stat.PID
	v, err := a.victim()
	if err != nil {
		return err
	}
	for i := range a.Attackers {
		if err := a.attack(uint32(65534-i%2), a.rng.Int64()); err != nil {
			return err
		}
	}
	enough := a.steps.Load() + a.Steps
	for end := time.Now().Add(length); time.Now().Before(end) && (a.Steps == 0 || a.steps.Load() < enough); {
		if err := v.check(); err != nil {
			return err
		}
		a.checks++
	}
	v.close()
	if n%3 == 2 { // with attackers at work
		if err := a.killed(); err != nil {
			return err
		}
		a.stop()
		_, err := a.lanefs("umount", a.mnt)
		return err
	}
	a.stop() // their open files would keep the mount busy; the daemon frees what they had meanwhile
	for end := time.Now().Add(a.Bound); ; time.Sleep(50 * time.Millisecond) {
		if _, err = a.lanefs("umount", a.mnt); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// killed kills the daemon, and checks that its process and its mount end.
func (a *arena) killed() error {
	if err := syscall.Kill(a.pid, syscall.SIGKILL); err != nil {
		return err
	}
	for end := time.Now().Add(a.Bound); !gone(a.pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("the daemon, %d, has been killed and has not ended within %v", a.pid, a.Bound)
		}
	}
	return a.within("statfs of the mount of a killed daemon", func() error {
		var st unix.Statfs_t
		if err := unix.Statfs(a.mnt, &st); err != unix.ENOTCONN {
			return fmt.Errorf("%v, want %v", err, unix.ENOTCONN)
		}
		return nil
	})
}

// gone reports whether a process has ended, with all of its threads.
func gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return bytes.Contains(b, []byte(") Z ")) && (err != nil || len(threads) <= 1)
}

// within requires that f returns no error, within the bound.
func (a *arena) within(what string, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	case <-time.After(a.Bound):
		return fmt.Errorf("%s has not ended within %v", what, a.Bound)
	}
}

// attack starts an attacker, and another one when it ends.
func (a *arena) attack(uid uint32, seed int64) error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{attackerEnv + "=" + strconv.FormatInt(seed, 10) + "\n" + a.mnt}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Pdeathsig: syscall.SIGKILL, Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ending {
		return nil
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	a.attackers = append(a.attackers, cmd)
	a.reaped.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if n, err := strconv.Atoi(lines.Text()); err == nil {
				a.steps.Add(int64(n))
			} else {
				a.Say("attacker: %s", lines.Text())
			}
		}
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
		_ = a.attack(uid, seed+1)
	})
	return nil
}

// stop kills the attackers.
func (a *arena) stop() {
	a.mu.Lock()
	a.ending = true
	for _, c := range a.attackers {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // with what it has forked
	}
	a.attackers = nil
	a.mu.Unlock()
	done := make(chan struct{})
	go func() { a.reaped.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(a.Bound): // an attacker may wait for the mount until that ends
	}
	a.mu.Lock()
	a.ending = false
	a.mu.Unlock()
}

// cleanUp ends the attackers, the daemon and the mount, in whatever state they are.
func (a *arena) cleanUp() error {
	a.stop()
	if a.pid == 0 || gone(a.pid) {
		_ = unix.Unmount(a.mnt, unix.MNT_DETACH)
		return nil
	}
	if log, err := os.ReadFile(filepath.Join(a.dir, "log")); err == nil {
		a.Say("the daemon's log ends: %s", log[max(0, len(log)-4000):])
	}
	_ = syscall.Kill(a.pid, syscall.SIGKILL)
	_ = unix.Unmount(a.mnt, unix.MNT_FORCE) // aborts the connection
	_ = unix.Unmount(a.mnt, unix.MNT_DETACH)
	return nil
}
