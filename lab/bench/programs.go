package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/lanefs/lanefs/lab/internal/drive"
)

// The rows of programs that people use.

// tar extracts the archive and makes it durable.
func (b *bench) tar(s *system) (done, error) {
	start := time.Now()
	if _, err := drive.Run("tar", "-xf", b.archive(), "-C", s.mnt, "--one-top-level=tar"); err != nil {
		return done{}, err
	}
	err := sync(s.mnt)
	return done{time.Since(start).Seconds(), treeFiles}, err
}

// git clones the repository, whose objects it copies (git's default for a local one is links), and asks for the clone's status.
func (b *bench) git(s *system) (done, error) {
	clone := filepath.Join(s.mnt, "clone")
	start := time.Now()
	if _, err := drive.Run("git", "clone", "-q", "--local", "--no-hardlinks", b.repository(), clone); err != nil {
		return done{}, err
	}
	out, err := drive.Run("git", "-C", clone, "status", "--porcelain")
	if err == nil && out != "" {
		err = fmt.Errorf("git status of a clone: %s", out)
	}
	return done{time.Since(start).Seconds(), treeFiles}, err
}

const inserts = 10000

// sqlite inserts rows of 100 characters, each by a transaction of its own, with synchronous=NORMAL: what a program that uses WAL mode
// is told to set. Then SQLite syncs at a checkpoint, each 1,000 pages of log, and not at each commit.
func sqlite(s *system) (done, error) {
	var sql bytes.Buffer
	sql.WriteString("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT);\n")
	for i := range inserts {
		fmt.Fprintf(&sql, "INSERT INTO t (text) VALUES ('%0100d');\n", i)
	}
	sql.WriteString("SELECT count(*) FROM t;\n")
	c := exec.Command("sqlite3", "-bail", filepath.Join(s.mnt, "database"))
	c.Stdin = &sql
	start := time.Now()
	out, err := c.CombinedOutput()
	if want := fmt.Sprintf("wal\n%d\n", inserts); err != nil || string(out) != want {
		return done{}, fmt.Errorf("sqlite3: %v\n%s", err, out)
	}
	return done{time.Since(start).Seconds(), inserts}, nil
}
