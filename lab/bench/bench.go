package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lanefs/lanefs/lab/internal/drive"
)

// bench is a run of the program.
type bench struct {
	lanefs, where, tree, options, newer, ways, only, json string
	markdown                                              bool
	runs                                                  int

	dir       string // of this run
	transport string // that LaneFS's first column uses
	results   results
}

func (b *bench) run() (err error) {
	if os.Geteuid() != 0 {
		return errors.New("needs root: the kernel's ext4 is mounted on a loop device")
	}
	if err := b.prepare(); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp(b.where, "lanefs-bench-"); err != nil {
		return err
	}
	systems, err := b.systems()
	if err != nil {
		return errors.Join(err, os.RemoveAll(b.dir))
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

	rows := chosen(b.rows(), b.only)
	if len(rows) == 0 {
		return fmt.Errorf("no row begins with one of %q", b.only)
	}
	if err := b.generate(); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%d rows on %d systems, %d times: about %v\n",
		len(rows), len(systems), b.runs, estimate(rows, len(systems), b.runs))
	b.results = results{}
	for n := range b.runs {
		for _, s := range systems {
			start := time.Now()
			if err := b.one(s, rows); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			fmt.Fprintf(os.Stderr, "run %d of %d: %s, %.0f s\n", n+1, b.runs, s.name, time.Since(start).Seconds())
		}
	}
	return b.report(systems, rows)
}

// prepare finds what a run needs.
func (b *bench) prepare() (err error) {
	if err := drive.Need("mkfs.ext4", "fio", "cp", "fuse2fs", "mount", "umount", "fusermount3", "git", "tar", "sqlite3", "stress-ng"); err != nil {
		return err
	}
	if b.lanefs, err = filepath.Abs(b.lanefs); err != nil {
		return err
	}
	if b.tree == "" {
		b.tree, err = drive.GoSource()
	}
	return err
}

// chosen are the rows that only names.
func chosen(rows []row, only string) []row {
	return slices.DeleteFunc(rows, func(r row) bool {
		if only == "" {
			return r.optional
		}
		return !slices.ContainsFunc(strings.Split(only, ","), func(p string) bool { return strings.HasPrefix(r.name, p) })
	})
}

// estimate is about how long a run takes.
func estimate(rows []row, systems, runs int) time.Duration {
	each := 4.0 // s to make a volume, mount it, and look it over at the end
	for _, r := range rows {
		each += r.seconds
	}
	return time.Duration(each * float64(systems*runs) * float64(time.Second)).Round(10 * time.Second)
}

// one is a run of all rows on a fresh volume.
func (b *bench) one(s *system, rows []row) error {
	if err := s.format(); err != nil {
		return err
	}
	if err := s.mount(b); err != nil {
		return err
	}
	for _, r := range rows {
		if s.kind == null && r.content || s.kind == kernel && r.ofDaemon {
			continue
		}
		f, err := r.run(s)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		b.results.add(r.name, s.name, f)
	}
	if err := s.unmount(); err != nil {
		return err
	}
	// The figures count only if the volume is sound.
	if s.kind == lanefs {
		if _, err := drive.Run("e2fsck", "-fn", s.image); err != nil {
			return err
		}
	}
	return os.RemoveAll(s.image)
}
