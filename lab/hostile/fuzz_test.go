package hostile

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/lab/internal/image"
)

// host is a small volume with one of everything, for FuzzVolume to damage.
type host struct {
	image  []byte
	blocks []uint64 // that hold metadata
}

const hostBlock = 1024

var makeHost = sync.OnceValues(func() (*host, error) {
	dir, err := os.MkdirTemp("", "lanefs-fuzz-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	img, content := filepath.Join(dir, "image"), filepath.Join(dir, "content")
	// Without checksums, so that damaged blocks are not refused for theirs.
	if err := image.Make(img, "3M", "-b", "1024", "-N", "128", "-J", "size=1", "-I", "256",
		"-O", "^metadata_csum,^resize_inode,orphan_file,inline_data"); err != nil {
		return nil, err
	}
	if err := os.WriteFile(content, make([]byte, 40<<10), 0o644); err != nil {
		return nil, err
	}
	cmds := []string{"mkdir d", "write " + content + " f", "symlink l " + strings.Repeat("t", 100), "mknod p p",
		"ea_set f user.small v", "ea_set f user.large " + strings.Repeat("v", 500), "ea_set d user.d v"}
	for _, name := range []string{"a", "b", "c", "e", "g", "h", "i", "j"} {
		cmds = append(cmds, "write /dev/null d/"+strings.Repeat(name, 120))
	}
	// A file in many pieces has nodes in its extent tree.
	cmds = append(cmds, "write /dev/null holes", "punch holes 0 100")
	for k := 0; k < 12; k += 2 {
		cmds = append(cmds, "fallocate holes "+strings.Repeat("1", k/2+1)+" "+strings.Repeat("1", k/2+1))
	}
	cmd := exec.Command("debugfs", "-w", "-f", "-", img)
	cmd.Stdin = strings.NewReader(strings.Join(cmds, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("debugfs: %w: %s", err, out)
	}
	h := &host{}
	if h.image, err = os.ReadFile(img); err != nil {
		return nil, err
	}
	h.image = append(h.image, make([]byte, -len(h.image)&(lba-1))...)
	// Metadata is what is not zero: the file's content is.
	for b := uint64(1); b < uint64(len(h.image))/hostBlock; b++ {
		if strings.Trim(string(h.image[b*hostBlock:(b+1)*hostBlock]), "\x00") != "" {
			h.blocks = append(h.blocks, b)
		}
	}
	return h, nil
})

// damage applies patches of five bytes: which block of metadata, where in it, and what a word there becomes.
func (h *host) damage(patches []byte) []byte {
	image := append([]byte(nil), h.image...)
	for ; len(patches) >= 5; patches = patches[5:] {
		block := h.blocks[int(patches[0])%len(h.blocks)]
		at := int(binary.LittleEndian.Uint16(patches[1:])) % (hostBlock - 1)
		copy(image[int(block)*hostBlock+at:], patches[3:5])
	}
	return image
}

// FuzzVolume damages the metadata of a volume, walks the volume if it mounts, and changes it. Whatever the bytes are, nothing
// may panic, hang, or read or write outside the volume.
func FuzzVolume(f *testing.F) {
	disktest.Tool(f, "mkfs.ext4", "debugfs")
	h, err := makeHost()
	require.NoError(f, err)
	require.Greater(f, len(h.blocks), 10)
	f.Add([]byte{})
	for k := range h.blocks {
		f.Add([]byte{byte(k), 0, 0, 0xff, 0xff, byte(k), 20, 0, 1, 0})
		f.Add([]byte{byte(k), 4, 0, 0, 0, byte(k), 8, 1, 0xff, 0x7f})
	}
	f.Fuzz(func(t *testing.T, patches []byte) {
		image := h.damage(patches[:min(len(patches), 40)])
		sb, err := disk.DecodeSuperblock(image[disk.SuperblockOffset:])
		if err == nil && (sb.BlocksCount > uint64(len(image))/hostBlock || sb.InodesCount > 1<<16) {
			return // a volume that claims to be larger than the device is refused; many inodes only take long
		}
		for _, ro := range []bool{true, false} {
			m := newMedium(contentOf(image), ro)
			bounded(t, func() {
				v, err := ext4.Open(m, ext4.Options{ReadOnly: ro})
				if err != nil {
					return
				}
				w := walkAll(v)
				if !ro {
					c := &churn{v: v, touched: map[string]bool{}}
					for _, d := range w.dirs[:min(len(w.dirs), 4)] {
						c.add(d)
						c.change(d)
					}
					for _, err := range c.refused {
						if !expected(err) {
							t.Errorf("unexpected: %v", err)
						}
					}
				}
				_ = v.Close()
			})
			checkMedium(t, m)
			if ro && len(m.written) > 0 {
				t.Error("a mount for reading has written")
			}
		}
	})
}
