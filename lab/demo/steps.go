package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/lanefs/lanefs/lab/internal/drive"
)

const (
	imageSize = 2 << 30
	bigSize   = 512 << 20
	blockSize = 4096 // of the volume
)

type demo struct {
	lanefs, tree       string
	image, mnt, source string
	mounted            bool
	sum                string // sha256 of the big file, in hex
	tally              tally  // of the tree
	mountedAt, written *drive.Stat
}

func (d *demo) format() error {
	if err := os.Mkdir(d.mnt, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(d.image, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(d.image, imageSize); err != nil {
		return err
	}
	_, err := drive.Run("mkfs.ext4", "-q", "-F", "-b", fmt.Sprint(blockSize), "-O", "metadata_csum_seed,orphan_file", d.image)
	return err
}

func (d *demo) mount() error {
	if _, err := drive.Run(d.lanefs, "mount", d.image, d.mnt); err != nil {
		return err
	}
	d.mounted = true
	var err error
	d.mountedAt, err = drive.ReadStat(d.lanefs, d.mnt)
	return err
}

func (d *demo) copyTree() error {
	elapsed, err := drive.Timed("cp", "-a", d.tree, filepath.Join(d.mnt, "src"))
	if err != nil {
		return err
	}
	if d.tally, err = count(d.tree); err != nil {
		return err
	}
	t := d.tally
	fmt.Printf("    %d files, %d directories, %d symbolic links, %.1f MiB in %.2f s: %.0f files/s, %.1f MB/s\n", t.files, t.dirs, t.links,
		float64(t.bytes)/(1<<20), elapsed.Seconds(), float64(t.files)/elapsed.Seconds(), float64(t.bytes)/elapsed.Seconds()/1e6)
	return nil
}

// writeBig copies random bytes with dd: no layer can compress them.
func (d *demo) writeBig() error {
	f, err := os.Create(d.source)
	if err != nil {
		return err
	}
	h := sha256.New()
	_, err = io.CopyN(io.MultiWriter(f, h), rand.Reader, bigSize)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	d.sum = hex.EncodeToString(h.Sum(nil))
	elapsed, err := drive.Timed("dd", "if="+d.source, "of="+d.big(), "bs=1M", "conv=fsync")
	if err != nil {
		return err
	}
	fmt.Printf("    %.2f s: %.0f MB/s\n", elapsed.Seconds(), bigSize/elapsed.Seconds()/1e6)
	return nil
}

func (d *demo) big() string { return filepath.Join(d.mnt, "big") }

// checkWritten compares the counters of the lanes with what was copied. Files are written in whole blocks.
func (d *demo) checkWritten() error {
	if _, err := drive.Run("sync", d.big(), d.mnt); err != nil { // fsync of both
		return err
	}
	s, err := drive.ReadStat(d.lanefs, d.mnt)
	if err != nil {
		return err
	}
	d.written = s
	v := s.Volume
	if want := d.tally.blocks + bigSize; v.DataWritten != want {
		return fmt.Errorf("the volume counts %d bytes of file data written, the files have %d in whole blocks", v.DataWritten, want)
	}
	// Counted since the mount, which itself writes the superblock.
	at := d.mountedAt
	lanes := s.Total.BytesWritten - at.Total.BytesWritten
	if volume := written(s) - written(at); lanes != volume {
		return fmt.Errorf("the lanes counted %d bytes written, the volume sent %d (%d data, %d metadata, %d journal): something went around them",
			lanes, volume, v.DataWritten, v.MetadataWritten, v.JournalWritten)
	}
	fmt.Printf("    %d bytes of files in whole blocks + %d of metadata and journal = %d counted by the lanes\n",
		v.DataWritten, lanes-v.DataWritten, lanes)
	return lanesAreSound(s)
}

func written(s *drive.Stat) int64 {
	return s.Volume.DataWritten + s.Volume.MetadataWritten + s.Volume.JournalWritten
}

// lanesAreSound checks invariants of the counters.
func lanesAreSound(s *drive.Stat) error {
	if s.Total.Errors+s.Total.Timeouts+s.Total.Late+s.Total.Spurious+s.Total.Rejected != 0 {
		return fmt.Errorf("the lanes counted trouble: %+v", s.Total)
	}
	for _, q := range s.Queues {
		rung := q.Commands - q.Shortcuts
		if q.Commands != q.Completions || rung < 0 || rung > 0 && q.SQDoorbells == 0 || q.SQDoorbells > rung {
			return fmt.Errorf("queue pair %d counts %d commands, %d of them without rings, %d completions and %d submission doorbells", q.QID, q.Commands, q.Shortcuts, q.Completions, q.SQDoorbells)
		}
	}
	if s.Total.SQDoorbells == 0 {
		return errors.New("no doorbell was rung")
	}
	return nil
}

func (d *demo) compare() error {
	if _, err := drive.Run("diff", "-r", "--no-dereference", d.tree, filepath.Join(d.mnt, "src")); err != nil {
		return err
	}
	if err := sameTree(d.tree, filepath.Join(d.mnt, "src")); err != nil {
		return err
	}
	out, err := drive.Run("sha256sum", d.big())
	if err != nil {
		return err
	}
	if got := out[:min(len(out), 64)]; got != d.sum {
		return fmt.Errorf("%s has sha256 %s, what was written has %s", d.big(), got, d.sum)
	}
	return nil
}

// compareCold compares after a new mount, so that every byte must come from the medium through the lanes.
func (d *demo) compareCold() error {
	start := time.Now()
	if err := d.compare(); err != nil {
		return err
	}
	elapsed := time.Since(start)
	s, err := drive.ReadStat(d.lanefs, d.mnt)
	if err != nil {
		return err
	}
	v := s.Volume
	if want := d.tally.blocks + bigSize; v.DataRead < want {
		return fmt.Errorf("the volume counts %d bytes of file data read, the files have %d: something was not read from the medium", v.DataRead, want)
	}
	if lanes, volume := s.Total.BytesRead, v.DataRead+v.MetadataRead; lanes < volume {
		return fmt.Errorf("the lanes counted %d bytes read, the volume asked for %d: something went around them", lanes, volume)
	}
	if err := lanesAreSound(s); err != nil {
		return err
	}
	fmt.Printf("    %.1f MiB of files read and compared in %.2f s\n\n", float64(d.tally.bytes+bigSize)/(1<<20), elapsed.Seconds())
	d.print(s)
	return nil
}

// print shows what each queue pair did in both mounts.
func (d *demo) print(read *drive.Stat) {
	how := ""
	if read.Simulated {
		how = ", each an NVMe queue pair of the software controller (simulated)"
	}
	fmt.Printf("    %d lanes%s\n", len(read.Queues), how)
	fmt.Println("                 writing                                                      reading")
	fmt.Println("    queue    commands  shortcuts   bytes written    SQ bells   CQ bells   commands  shortcuts      bytes read    SQ bells   CQ bells")
	row := func(name string, w, r drive.Queue) {
		fmt.Printf("    %-5s  %10d %10d  %14d  %10d %10d %10d %10d  %14d  %10d %10d\n", name, w.Commands, w.Shortcuts, w.BytesWritten, w.SQDoorbells, w.CQDoorbells,
			r.Commands, r.Shortcuts, r.BytesRead, r.SQDoorbells, r.CQDoorbells)
	}
	for i, q := range read.Queues {
		row(fmt.Sprint(q.QID), d.written.Queues[i], q)
	}
	row("all", d.written.Total, read.Total)
	fmt.Println()
}

func (d *demo) unmount() error {
	start := time.Now()
	if _, err := drive.Run(d.lanefs, "umount", d.mnt); err != nil {
		return err
	}
	d.mounted = false
	fmt.Printf("    %.2f s\n", time.Since(start).Seconds())
	return nil
}

func (d *demo) fsck() error {
	_, err := drive.Run("e2fsck", "-fn", d.image)
	return err
}

func (d *demo) end() error {
	if err := d.unmount(); err != nil {
		return err
	}
	return d.fsck()
}

// cleanUp removes everything, also after a failed step.
func (d *demo) cleanUp(dir string) error {
	if d.mounted {
		if _, err := drive.Run(d.lanefs, "umount", d.mnt); err != nil {
			if s, err := drive.ReadStat(d.lanefs, d.mnt); err == nil {
				syscall.Kill(s.PID, syscall.SIGKILL)
			}
			exec.Command("umount", "-l", d.mnt).Run()
		}
		d.mounted = false
	}
	return os.RemoveAll(dir)
}
