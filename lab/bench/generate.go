package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/lanefs/lanefs/lab/internal/drive"
)

const treeFiles = 5000

func (b *bench) repository() string { return filepath.Join(b.dir, "repository") }
func (b *bench) archive() string    { return filepath.Join(b.dir, "tree.tar") }

// generate makes a tree of text files of 100 bytes to 8 KiB in directories of 50, the same each time, as a tar archive and as a git
// repository with one commit.
func (b *bench) generate() error {
	draw := rand.New(rand.NewPCG(1, 1))
	for i := range treeFiles {
		dir := filepath.Join(b.repository(), fmt.Sprintf("dir-%d/dir-%02d", i/500, i/50%10))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		text := make([]byte, 100+draw.IntN(8093))
		for j := range text {
			text[j] = "abcdefghijklmnopqrstuvwxyz     \n"[draw.IntN(32)]
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file-%04d.txt", i)), text, 0o644); err != nil {
			return err
		}
	}
	for _, c := range [][]string{
		{"tar", "-cf", b.archive(), "-C", b.repository(), "."},
		{"git", "-C", b.repository(), "init", "-q"},
		{"git", "-C", b.repository(), "add", "."},
		{"git", "-C", b.repository(), "-c", "user.name=bench", "-c", "user.email=bench@localhost",
			"-c", "gc.auto=0", "commit", "-q", "-m", "generated"},
	} {
		if _, err := drive.Run(c[0], c[1:]...); err != nil {
			return err
		}
	}
	return nil
}
