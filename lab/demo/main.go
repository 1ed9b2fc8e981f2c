// Command demo is `make demo`: the first mount, from mkfs to fsck, with every step checked. It stops at the first check
// that fails, and leaves nothing behind.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/lanefs/lanefs/lab/internal/drive"
)

func main() {
	lanefs := flag.String("lanefs", "./lanefs", "the binary to show")
	where := flag.String("dir", "", "where the image and the mount point go, about 2 GiB (default: a temporary directory)")
	tree := flag.String("tree", "", "the tree to copy (default: the source tree of Go)")
	flag.Parse()
	if err := run(*lanefs, *where, *tree); err != nil {
		fmt.Fprintln(os.Stderr, "demo: FAILED:", err)
		os.Exit(1)
	}
	fmt.Println("demo: everything above was checked and holds.")
}

func run(lanefs, where, tree string) (err error) {
	if err := drive.Need("mkfs.ext4", "e2fsck", "dd", "cp", "diff", "sha256sum"); err != nil {
		return err
	}
	if lanefs, err = filepath.Abs(lanefs); err != nil {
		return err
	}
	if tree == "" {
		if tree, err = drive.GoSource(); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp(where, "lanefs-demo-")
	if err != nil {
		return err
	}
	d := &demo{lanefs: lanefs, tree: tree, image: filepath.Join(dir, "image"), mnt: filepath.Join(dir, "mnt"), source: filepath.Join(dir, "source")}
	tidy := func() error { return d.cleanUp(dir) }
	defer func() { err = errors.Join(err, tidy()) }()
	drive.OnInterrupt("demo", tidy)
	if err := enough(dir, 3<<30); err != nil {
		return err
	}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"a 2 GiB image, formatted by mkfs.ext4 -O metadata_csum_seed,orphan_file", d.format},
		{"lanefs mount", d.mount},
		{"cp -a " + tree, d.copyTree},
		{"dd of 512 MiB, conv=fsync", d.writeBig},
		{"the data that the lanes counted is the data that was copied", d.checkWritten},
		{"diff -r, sha256 and every mode, owner, time and link", d.compare},
		{"lanefs umount", d.unmount},
		{"e2fsck -fn", d.fsck},
		{"lanefs mount again", d.mount},
		{"compare again, from the medium this time", d.compareCold},
		{"lanefs umount, e2fsck -fn", d.end},
	} {
		fmt.Println("==>", step.what)
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

// enough returns an error unless there is space for what the demo makes.
func enough(dir string, need int64) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return err
	}
	if have := int64(st.Bavail) * st.Bsize; have < need {
		return fmt.Errorf("%s has %d MiB free, the demo needs %d: choose another place with -dir", dir, have>>20, need>>20)
	}
	return nil
}
