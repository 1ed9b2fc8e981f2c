// Command bench is `make bench`: the same work on LaneFS, fuse2fs and the kernel's ext4 on a loop device, each on an image
// of its own in RAM, in one run. The systems take turns; the table shows medians and ratios.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/lanefs/lanefs/lab/internal/drive"
)

func main() {
	b := bench{results: map[string]map[string][]float64{}}
	flag.StringVar(&b.lanefs, "lanefs", "./lanefs", "the binary to measure")
	flag.StringVar(&b.where, "dir", "/dev/shm", "where the images go; by default memory")
	flag.StringVar(&b.tree, "tree", "", "the tree to copy (default: the source tree of Go)")
	flag.StringVar(&b.options, "o", "", "mount options of LaneFS")
	runs := flag.Int("runs", 3, "runs of each; the median counts")
	only := flag.String("only", "", "systems to run, separated by commas (default: lanefs,fuse2fs,kernel)")
	rows := flag.String("rows", "", "rows to run, by the letters in which they begin (default: all)")
	flag.Parse()
	if err := b.run(*runs, *only, *rows); err != nil {
		fmt.Fprintln(os.Stderr, "bench: FAILED:", err)
		os.Exit(1)
	}
}

type bench struct {
	lanefs, where, tree, options string

	dir     string
	results map[string]map[string][]float64 // by row and system
}

func (b *bench) run(runs int, only, rows string) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("needs root: the kernel's ext4 is mounted on a loop device")
	}
	if err := drive.Need("mkfs.ext4", "fio", "cp", "fuse2fs", "mount", "umount", "fusermount3"); err != nil {
		return err
	}
	if b.lanefs, err = filepath.Abs(b.lanefs); err != nil {
		return err
	}
	if b.tree == "" {
		if b.tree, err = drive.GoSource(); err != nil {
			return err
		}
	}
	if b.dir, err = os.MkdirTemp(b.where, "lanefs-bench-"); err != nil {
		return err
	}
	systems := b.systems()
	if only != "" {
		systems = slices.DeleteFunc(systems, func(s *system) bool { return !slices.Contains(strings.Split(only, ","), s.name) })
	}
	tidy := func() error {
		var errs []error
		for _, s := range systems {
			errs = append(errs, s.abandon())
		}
		return errors.Join(append(errs, os.RemoveAll(b.dir))...)
	}
	defer func() { err = errors.Join(err, tidy()) }()
	drive.OnInterrupt("bench", tidy)
	for n := range runs {
		for _, s := range systems {
			fmt.Fprintf(os.Stderr, "run %d of %d: %s\n", n+1, runs, s.name)
			if err := b.one(s, rows); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	b.print(systems, runs)
	return nil
}

// one is a run of all rows on a fresh volume.
func (b *bench) one(s *system, rows string) error {
	if err := s.format(); err != nil {
		return err
	}
	if err := s.mount(); err != nil {
		return err
	}
	for _, r := range b.rows() {
		if rows != "" && !slices.ContainsFunc(strings.Split(rows, ","), func(p string) bool { return strings.HasPrefix(r.name, p) }) {
			continue
		}
		v, err := r.measure(s.mnt)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		if b.results[r.name] == nil {
			b.results[r.name] = map[string][]float64{}
		}
		b.results[r.name][s.name] = append(b.results[r.name][s.name], v)
	}
	if err := s.unmount(); err != nil {
		return err
	}
	// The figures count only if the volume is sound.
	if s.name == "lanefs" {
		if _, err := drive.Run("e2fsck", "-fn", s.image); err != nil {
			return err
		}
	}
	return os.Remove(s.image)
}

// print writes the table.
func (b *bench) print(systems []*system, runs int) {
	fmt.Printf("LaneFS with the software controller (lanes on CPU threads), fuse2fs and the kernel's ext4 on loop.\n")
	fmt.Printf("Images of 2 GiB in %s, 4 KiB blocks; %d CPUs; median of %d runs; ratios above 1: LaneFS is faster.\n\n", b.where, runtime.NumCPU(), runs)
	fmt.Printf("%-38s", "")
	for _, s := range systems {
		fmt.Printf("%14s", s.name)
	}
	others := slices.DeleteFunc(slices.Clone(systems), func(s *system) bool { return s.name == "lanefs" })
	if len(others) == len(systems) {
		others = nil // there is nothing to compare with
	}
	for _, s := range others {
		fmt.Printf("%12s", "vs "+s.name)
	}
	fmt.Println()
	for _, r := range b.rows() {
		if b.results[r.name] == nil {
			continue
		}
		got := map[string]float64{}
		fmt.Printf("%-38s", r.name+", "+r.unit)
		for _, s := range systems {
			got[s.name] = median(b.results[r.name][s.name])
			fmt.Printf("%14s", r.show(got[s.name]))
		}
		for _, s := range others {
			ratio := got["lanefs"] / got[s.name]
			if r.lessIsBetter {
				ratio = 1 / ratio
			}
			fmt.Printf("%11.2fx", ratio)
		}
		fmt.Println()
	}
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if len(v) == 0 {
		return 0
	}
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}
