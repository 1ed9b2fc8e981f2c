package fs

import (
	"bytes"
	"fmt"
	"os/exec"
)

// fusermount runs fusermount3, which mounts and unmounts for ordinary users.
func fusermount(args ...string) error {
	bin, err := exec.LookPath("fusermount3")
	if err != nil {
		return fmt.Errorf("%w: install fuse3", err)
	}
	out, err := exec.Command(bin, args...).CombinedOutput()
	if err != nil {
		if text := bytes.TrimSpace(out); len(text) > 0 {
			return fmt.Errorf("%s", text)
		}
		return err
	}
	return nil
}
