package powercut

import (
	"fmt"
	"os"
)

// Replay tries one cut of a saved run again, in every way. Images are left in dir if it is not "".
func Replay(saved string, c Cut, dir string, kernel bool) error {
	r, err := Load(saved)
	if err != nil {
		return err
	}
	if dir == "" {
		if dir, err = os.MkdirTemp("", "lanefs-crash-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b, err := newBench(r, dir)
	if err != nil {
		return err
	}
	defer b.close()
	if err := b.replay.Cut(c.At, c.Seed); err != nil {
		return err
	}
	if _, err := b.put("before.img"); err != nil {
		return err
	}
	if err := b.try(c, depth{look: true, fsck: true, kernel: kernel, recuts: 4}); err != nil {
		return fmt.Errorf("%w\n  (%v)", err, b.replay)
	}
	return nil
}
