package powercut

import (
	"errors"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/lanefs/lanefs/blockdev/namespace"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/softctl"
	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// stack is an open volume and all layers below it, as in lanefs mount but without FUSE.
type stack struct {
	rt   gpu.Runtime
	ctl  *softctl.Controller
	nvme *controller.Controller
	eng  *engine.Engine
	dev  *namespace.Namespace
	vol  *ext4.FS
}

type stackOptions struct {
	lba        int
	readOnly   bool
	discard    bool
	commit     time.Duration
	recorder   *media.Recorder
	outOfOrder bool
	seed       int64
	lanes      int
	log        *slog.Logger // nil: discard
}

var discardLog = slog.New(slog.NewTextHandler(io.Discard, nil))

func openStack(image string, o stackOptions) (s *stack, err error) {
	s = &stack{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
			s = nil
		}
	}()
	if s.rt, err = host.Open(host.Options{}); err != nil {
		return s, err
	}
	// A child process that another goroutine starts has all files open until its execve(2), so also the lock of an image that
	// was just closed.
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		s.ctl, err = softctl.Open(image, softctl.Options{BlockSize: o.lba, ReadOnly: o.readOnly, Recorder: o.recorder,
			OutOfOrder: o.outOfOrder, Seed: o.seed, Log: discardLog})
		if err == nil {
			break
		}
		if !strings.Contains(err.Error(), "in use by another") || time.Now().After(end) {
			return s, err
		}
	}
	if s.nvme, err = controller.Open(controller.Config{Runtime: s.rt, Transport: s.ctl, Log: discardLog}); err != nil {
		return s, err
	}
	if s.eng, err = engine.New(s.nvme, engine.Config{Lanes: max(o.lanes, 1)}); err != nil {
		return s, err
	}
	if s.dev, err = namespace.Open(s.eng, 1, namespace.Options{}); err != nil {
		return s, err
	}
	s.vol, err = ext4.Open(s.dev, ext4.Options{ReadOnly: o.readOnly, CommitInterval: o.commit, Discard: o.discard,
		CacheSize: 16 << 20, Log: o.log})
	return s, err
}

// unmount closes the volume.
func (s *stack) unmount() error {
	if s.vol == nil {
		return nil
	}
	err := s.vol.Close()
	s.vol = nil
	return err
}

// close unmounts and takes the stack down. It may be called again.
func (s *stack) close() error {
	errs := []error{s.unmount()}
	if s.dev != nil {
		errs = append(errs, s.dev.Close())
	}
	if s.eng != nil {
		errs = append(errs, s.eng.Close())
	}
	if s.nvme != nil {
		errs = append(errs, s.nvme.Close())
	}
	if s.ctl != nil {
		errs = append(errs, s.ctl.Close())
	}
	if s.rt != nil {
		errs = append(errs, s.rt.Close())
	}
	*s = stack{}
	return errors.Join(errs...)
}
