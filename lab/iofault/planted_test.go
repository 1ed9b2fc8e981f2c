package iofault

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/lab/internal/drive"
)

// plant is a mistake in LaneFS: a text in a source file and its replacement.
type plant struct {
	name     string
	file     string // below the repository's root
	old, new string
	flags    []string // of the campaign, so that it finds the mistake soon
	long     bool     // only with LANEFS_PLANTED=all
}

// plants are mistakes that the campaign must find.
var plants = []plant{
	{name: "half an operation is committed after an error", file: "fs/ext4/internal/volume/op.go",
		old: "		err = o.undo(err)\n", new: ""},
	{name: "blocks that were taken are not given back", file: "fs/ext4/alloc/blocks.go",
		old: "	h.OnUndo(func() { a.untake(h, g, buf, off, n) }, buf)\n", new: ""},
	{name: "an inode that was taken is not given back", file: "fs/ext4/alloc/inodes.go", long: true,
		old: "	h.OnUndo(func() { a.untakeInode(h, g, buf, i, isDir) }, buf)\n", new: "",
		flags: []string{"-profile", "names"}},
	{name: "an inode in memory is not put back", file: "fs/ext4/internal/volume/op.go", long: true,
		old: "		i.putBack(&o.kept[k])\n", new: "		_, _ = i, k\n"},
	{name: "fsync does not wait", file: "fs/ext4/internal/contents/fsync.go", long: true,
		old: "return i.FS.Journal.Sync(tid)", new: "_ = tid\n\treturn nil",
		flags: []string{"-profile", "direct", "-seed", "5"}},
	{name: "the error is not recorded", file: "fs/ext4/internal/volume/errors.go", long: true,
		old: "if rerr := record(); rerr != nil {", new: "if rerr := error(nil); rerr != nil {"},
	{name: "an array hears of its first member's errors only", file: "blockdev/md/device.go", long: true,
		old: "			if p.Err != nil {\n				p.of", new: "			if p.Err != nil && p.member == 0 {\n				p.of",
		flags: []string{"-layout", "array"}},
}

// text returns the source file of a plant. It must contain the text to be replaced once.
func (p *plant) text(t *testing.T) (path, text string) {
	path, err := filepath.Abs(filepath.Join("..", "..", p.file))
	require.NoError(t, err)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(b), p.old), "%s has changed: plant the mistake anew", p.file)
	return path, string(b)
}

// TestPlants checks all plants, also those that TestPlanted skips.
func TestPlants(t *testing.T) {
	for _, p := range plants {
		p.text(t)
	}
}

// TestPlanted builds the campaign with each of the mistakes in LaneFS. The campaign must find it.
func TestPlanted(t *testing.T) {
	disktest.Tool(t, "go", "mkfs.ext4", "dumpe2fs", "e2fsck")
	for k, p := range plants {
		t.Run(p.name, func(t *testing.T) {
			if os.Getenv("LANEFS_PLANTED") != "all" && (p.long || !disktest.Turn(k, 2)) {
				t.Skip("takes a build of its own: LANEFS_PLANTED=all tries it")
			}
			dir := t.TempDir()
			source, text := p.text(t)
			wrong, overlay, binary := filepath.Join(dir, "wrong.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "faults")
			require.NoError(t, os.WriteFile(wrong, []byte(strings.Replace(text, p.old, p.new, 1)), 0o600))
			j, err := json.Marshal(map[string]any{"Replace": map[string]string{source: wrong}})
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(overlay, j, 0o600))
			build := exec.Command("go", "build", "-overlay", overlay, "-o", binary, "./lab/iofault/faults")
			build.Dir = filepath.Join("..", "..")
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			out, err := build.CombinedOutput()
			require.NoError(t, err, "%s", out)
			run := exec.Command(binary, append([]string{"-seed", "1", "-time", "0", "-tries", "6000", "-kernel", "0", "-lanefs", "0.5", "-dir", drive.Memory()}, p.flags...)...)
			var said bytes.Buffer
			run.Stdout, run.Stderr = &said, &said
			err = run.Run()
			var exit *exec.ExitError
			require.True(t, errors.As(err, &exit) && exit.ExitCode() == 1 && strings.Contains(said.String(), "FAILED: "), "the mistake was not found: %v\n%s", err, &said)
			first, _, _ := strings.Cut(said.String(), "\n  again:")
			t.Logf("%.600s", first)
		})
	}
}
