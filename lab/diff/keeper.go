package diff

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest/loopmount"
	"github.com/lanefs/lanefs/lab/internal/image"
)

// keeperConfig is a keeper's configuration, which it gets in its environment.
type keeperConfig struct {
	Kernel    bool // the kernel's ext4 on a loop device, else LaneFS
	Image     string
	Dir       string
	ReadOnly  bool
	WriteBack bool   // LaneFS: fs.Options.WriteBack
	IOUring   string // see Side
}

// keeperMain mounts, says "ready", and unmounts when its input ends.
func keeperMain(cfg keeperConfig) error {
	var stop func() error
	var err error
	if cfg.Kernel {
		stop, err = mountKernel(cfg)
	} else {
		stop, err = mountLane(cfg)
	}
	if err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, stop())
}

// untilBusy tries to unmount for a while: a process that just ended may still hold the mount.
func untilBusy(f func() error) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := f()
		if err == nil || !errors.Is(err, unix.EBUSY) && !errors.Is(err, fs.ErrBusy) || time.Now().After(deadline) {
			return err
		}
	}
}

func mountKernel(cfg keeperConfig) (func() error, error) {
	mode := os.O_RDWR
	if cfg.ReadOnly {
		mode = os.O_RDONLY
	}
	img, err := os.OpenFile(cfg.Image, mode, 0)
	if err != nil {
		return nil, err
	}
	defer img.Close() // the loop device has it open
	if err := image.Mount(img, cfg.Dir, cfg.ReadOnly); err != nil {
		return nil, err
	}
	return func() error { return loopmount.Unmount(cfg.Dir) }, nil
}

// openVolume opens an image with LaneFS's ext4.
func openVolume(image string, readOnly bool) (*ext4.FS, blockdev.Device, error) {
	dev, err := blockdev.OpenFile(image, 512)
	if err != nil {
		return nil, nil, err
	}
	vol, err := ext4.Open(dev, ext4.Options{ReadOnly: readOnly, Atime: ext4.AtimeNever, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return nil, nil, errors.Join(err, dev.Close())
	}
	return vol, dev, nil
}

func mountLane(cfg keeperConfig) (func() error, error) {
	vol, dev, err := openVolume(cfg.Image, cfg.ReadOnly)
	if err != nil {
		return nil, err
	}
	transport, ok := map[string]fs.IOUring{"": fs.IOUringAuto, "on": fs.IOUringOn, "off": fs.IOUringOff}[cfg.IOUring]
	if !ok {
		return nil, fmt.Errorf("io_uring %q is neither on nor off", cfg.IOUring)
	}
	srv, err := fs.Mount(cfg.Dir, vol, fs.Options{IOUring: transport, SchedIdle: true, FSName: cfg.Image, WriteBack: cfg.WriteBack, ReadOnly: cfg.ReadOnly, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return nil, errors.Join(err, vol.Close(), dev.Close())
	}
	if by, why := srv.Transport(); cfg.IOUring == "on" && why != nil {
		return nil, errors.Join(fmt.Errorf("requests come by %s: %w", by, why), srv.Unmount(), vol.Close(), dev.Close())
	}
	return func() error {
		if err := untilBusy(srv.Unmount); err != nil {
			return errors.Join(err, fs.Detach(cfg.Dir))
		}
		var left error
		if n := srv.Stats().Nodes; n != 0 {
			left = fmt.Errorf("%d nodes are left after the mount went away", n)
		}
		return errors.Join(left, vol.Close(), dev.Close())
	}, nil
}

// keeper is a keeper process, seen from the parent.
type keeper struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr *tail
}

func startKeeper(cfg keeperConfig) (*keeper, error) {
	k := &keeper{cmd: child("keeper", cfg), stderr: &tail{}}
	k.cmd.Stderr = k.stderr
	var err error
	if k.in, err = k.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := k.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := k.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(line) != "ready" {
		k.in.Close()
		return nil, fmt.Errorf("mount %q: %w", cfg.Image, errors.Join(err, k.cmd.Wait(), errors.New(k.stderr.String())))
	}
	return k, nil
}

// stop unmounts. What the keeper printed is in k.stderr.
func (k *keeper) stop() error {
	k.in.Close()
	done := make(chan error, 1)
	go func() { done <- k.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%w: %s", err, k.stderr)
		}
		return nil
	case <-time.After(opDeadline):
		_ = k.cmd.Process.Signal(syscall.SIGQUIT)
		<-done
		return fmt.Errorf("unmount %w: %s", errHangs, k.stderr)
	}
}

// dump makes a keeper that hangs say where.
func (k *keeper) dump() string {
	_ = k.cmd.Process.Signal(syscall.SIGQUIT)
	_ = k.cmd.Wait()
	return k.stderr.String()
}
