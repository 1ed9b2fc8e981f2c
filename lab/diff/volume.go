package diff

import (
	"errors"
	"fmt"
	"os"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest/sparse"
	"github.com/lanefs/lanefs/lab/internal/drive"
)

// volume is one side of a run.
type volume struct {
	Side
	image string
	dir   string
	keep  *keeper
}

func (v *volume) mount(readOnly bool) error {
	if v.Kind == "direct" {
		return nil
	}
	var err error
	v.keep, err = startKeeper(keeperConfig{Kernel: v.Kind == "kernel", Image: v.image, Dir: v.dir, ReadOnly: readOnly, WriteBack: v.WriteBack, IOUring: v.IOUring})
	return err
}

// unmount ends a mount. Anything that LaneFS has logged is an error: it logs damage and races only.
func (v *volume) unmount() error {
	if v.keep == nil {
		return nil
	}
	k := v.keep
	v.keep = nil
	if err := k.stop(); err != nil {
		return fmt.Errorf("unmount %s: %w", v.Kind, err)
	}
	if s := k.stderr.String(); s != "" {
		return fmt.Errorf("%s printed: %s", v.Kind, s)
	}
	return nil
}

// mkfs makes an image.
func mkfs(v Volume, image string) error {
	f, err := os.Create(image)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(v.Size), f.Close()); err != nil {
		return err
	}
	args := append([]string{"-q", "-F", "-E", "lazy_itable_init=1,nodiscard"}, v.Mkfs...)
	_, err = drive.Run("mkfs.ext4", append(args, image)...)
	return err
}

func (r *run) makeImages() error {
	if err := mkfs(r.Volume, r.sides[0].image); err != nil {
		return err
	}
	for _, v := range r.sides[1:] {
		if err := sparse.Copy(r.sides[0].image, v.image); err != nil {
			return err
		}
	}
	return nil
}
