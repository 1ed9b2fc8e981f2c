package diff

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// workerConfig is a worker's configuration, which it gets in its environment.
type workerConfig struct {
	Root     string // directory that it is confined to
	Image    string // for direct: the volume that it opens itself
	Run      time.Time
	Probe    bool
	Sabotage string
}

// request is sent to a worker: an Op, or that it reads the tree below its root.
type request struct {
	Op   *Op
	Tree bool
}

type reply struct {
	Result Result
	Tree   []Entry
	Err    string
}

// executor runs Ops.
type executor interface {
	do(*Op) Result
	closeAll()
}

// workerMain is the main function of a worker process.
func workerMain(cfg workerConfig) error {
	runtime.LockOSThread()
	var x executor
	if cfg.Image != "" {
		d, err := openDirect(cfg.Image)
		if err != nil {
			return err
		}
		defer func() {
			if err := d.close(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}()
		x = d
	} else {
		if err := unix.Chroot(cfg.Root); err != nil {
			return fmt.Errorf("chroot %q: %w", cfg.Root, err)
		}
		if err := unix.Chdir("/"); err != nil {
			return err
		}
		x = newPosix(cfg.Run, cfg.Probe, cfg.Sabotage)
	}
	in, out := gob.NewDecoder(os.Stdin), gob.NewEncoder(os.Stdout)
	for {
		var q request
		if err := in.Decode(&q); err != nil {
			x.closeAll()
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		var a reply
		switch {
		case q.Tree:
			// The blocks of a file are allocated when its pages are written.
			sync := x.do(&Op{Kind: OpSync})
			tree, err := walkTree(".")
			if a.Tree = tree; err != nil {
				a.Err = err.Error()
			} else if sync.Errno != 0 && sync.Errno != unix.EROFS {
				a.Err = "syncfs: " + errnoName(sync.Errno)
			}
		case q.Op != nil:
			a.Result = x.do(q.Op)
		default:
			x.closeAll()
		}
		if err := out.Encode(&a); err != nil {
			return err
		}
	}
}

// worker is a worker process, seen from the parent.
type worker struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	enc     *gob.Encoder
	dec     *gob.Decoder
	replies chan reply
	stderr  *tail
}

// opDeadline is how long one Op may take. One that takes longer hangs.
const opDeadline = 2 * time.Minute

func startWorker(cfg workerConfig) (*worker, error) {
	w := &worker{replies: make(chan reply, 1), stderr: &tail{}}
	w.cmd = child("worker", cfg)
	w.cmd.Stderr = w.stderr
	var err error
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	w.enc, w.dec = gob.NewEncoder(w.in), gob.NewDecoder(out)
	go func() {
		defer close(w.replies)
		for {
			var a reply
			if err := w.dec.Decode(&a); err != nil {
				return
			}
			w.replies <- a
		}
	}()
	return w, nil
}

// errHangs is the error of an Op that did not return.
var errHangs = errors.New("hangs")

func (w *worker) send(q request) error { return w.enc.Encode(&q) }

func (w *worker) receive() (reply, error) {
	t := time.NewTimer(opDeadline)
	defer t.Stop()
	select {
	case a, ok := <-w.replies:
		if !ok {
			return a, fmt.Errorf("a worker died: %s", w.stderr)
		}
		if a.Err != "" {
			return a, fmt.Errorf("%w: %s", errTree, a.Err)
		}
		return a, nil
	case <-t.C:
		return reply{}, fmt.Errorf("an operation %w: no answer for %v; the worker is in%s", errHangs, opDeadline, w.where())
	}
}

// where returns the kernel stacks of a worker's threads.
func (w *worker) where() string {
	var b strings.Builder
	stacks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stack", w.cmd.Process.Pid))
	for _, f := range stacks {
		if s, err := os.ReadFile(f); err == nil && !bytes.Contains(s, []byte("futex")) {
			fmt.Fprintf(&b, "\n%s:\n%s", f, s)
		}
	}
	return b.String()
}

func (w *worker) call(q request) (reply, error) {
	if err := w.send(q); err != nil {
		return reply{}, fmt.Errorf("a worker died: %w: %s", err, w.stderr)
	}
	return w.receive()
}

// stop ends the worker, which closes what it has open.
func (w *worker) stop() error {
	w.in.Close()
	done := make(chan error, 1)
	go func() {
		for range w.replies {
		}
		done <- w.cmd.Wait()
	}()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("a worker: %w: %s", err, w.stderr)
		}
		return nil
	case <-time.After(opDeadline):
		_ = w.cmd.Process.Kill()
		return fmt.Errorf("a worker %w at its end", errHangs)
	}
}

// childEnv names the variable that makes a child of this program: "worker" or "keeper" and its configuration.
const childEnv = "LANEFS_DIFFTEST_CHILD"

// child returns a command that runs this program again in another role. It dies with its parent, except for a keeper, which
// has to unmount first.
func child(role string, cfg any) *exec.Cmd {
	b, err := json.Marshal(cfg)
	if err != nil {
		panic(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+role+" "+string(b))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt goes to the parent alone
	return cmd
}

// Child runs a child's role and exits, if this process is a child. Programs that use this package must call it first.
func Child() {
	env := os.Getenv(childEnv)
	if env == "" {
		return
	}
	var role string
	n := 0
	for n < len(env) && env[n] != ' ' {
		n++
	}
	role = env[:n]
	var err error
	switch role {
	case "worker":
		var cfg workerConfig
		if err = json.Unmarshal([]byte(env[n:]), &cfg); err == nil {
			err = workerMain(cfg)
		}
	case "keeper":
		var cfg keeperConfig
		if err = json.Unmarshal([]byte(env[n:]), &cfg); err == nil {
			err = keeperMain(cfg)
		}
	default:
		err = fmt.Errorf("%s: no role %q", childEnv, role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// tail keeps the beginning and the end of what a child prints.
type tail struct{ head, rest []byte }

const tailMax = 16 << 10

func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	if room := tailMax - len(t.head); room > 0 {
		k := min(room, len(p))
		t.head, p = append(t.head, p[:k]...), p[k:]
	}
	t.rest = append(t.rest, p...)
	if len(t.rest) > tailMax {
		t.rest = t.rest[len(t.rest)-tailMax:]
	}
	return n, nil
}

func (t *tail) String() string { return string(t.head) + string(t.rest) }
