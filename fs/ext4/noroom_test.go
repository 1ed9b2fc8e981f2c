package ext4_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// crashed makes an image as a crash leaves it: synchronized files in the journal alone, and a file without a name that was open. It returns their names.
func crashed(t *testing.T, mkfs ...string) (img string, names []string) {
	t.Helper()
	img = disktest.Make(t, "8M", mkfs...)
	dev, err := blockdev.OpenFile(img, 512)
	require.NoError(t, err)
	v, err := ext4.Open(dev, ext4.Options{CommitInterval: time.Hour})
	require.NoError(t, err)
	root, err := v.Root()
	require.NoError(t, err)
	for k := range 30 {
		names = append(names, fmt.Sprint("f", k))
		create(t, root, names[k]).Put()
	}
	f := create(t, root, "nameless")
	_, err = f.Write(0, make([]byte, 300<<10))
	require.NoError(t, err)
	require.NoError(t, root.Unlink("nameless"))
	require.NoError(t, v.Sync())
	b, err := os.ReadFile(img)
	require.NoError(t, err)
	f.Put()
	root.Put()
	require.NoError(t, v.Close())
	require.NoError(t, dev.Close())
	require.NoError(t, os.WriteFile(img, b, 0o600))
	return img, names
}

var quiet = slog.New(slog.DiscardHandler)

// requireUnmarked holds that nothing on the volume says that there was an error.
func requireUnmarked(t *testing.T, img, what string) {
	t.Helper()
	v, done := open(t, img, ext4.Options{ReadOnly: true, Log: quiet})
	in := v.Inspect()
	require.False(t, in.Errors.Marked, what)
	require.Zero(t, in.Errors.Count, what)
	require.Zero(t, in.Journal.Errno, what)
	require.False(t, in.Damaged, what)
	done()
}

// TestMountWithoutRoom: from its k-th write on, for every k, a mount after a crash hears that there is no room, that the medium is write-protected, or that it has failed. The error
// advises what helps, and e2fsck in no case; nothing is marked, and when the cause is gone all that was synchronized is there.
func TestMountWithoutRoom(t *testing.T) {
	for _, c := range []struct {
		name   string
		err    error
		there  bool // superblocks, which have their blocks, can be written
		advice string
	}{
		{"no room", blockdev.ErrNoSpace, false, "; make room where it is stored, or mount it with -o ro; do not run e2fsck before there is room"},
		{"no room for what is new", blockdev.ErrNoSpace, true, "; make room where it is stored, or mount it with -o ro; do not run e2fsck before there is room"},
		{"write-protected", blockdev.ErrReadOnly, false, "; lift its write protection, or mount it with -o ro"},
	} {
		for kind, mkfs := range map[string][]string{"orphan list": {"-O", "^orphan_file"}, "orphan file": {"-O", "orphan_file,metadata_csum_seed"}} {
			t.Run(c.name+", "+kind, func(t *testing.T) {
				img, names := crashed(t, mkfs...)
				whole, err := os.ReadFile(img)
				require.NoError(t, err)
				dir := t.TempDir()
				for k := 0; ; k++ {
					what := fmt.Sprintf("from write %d on", k)
					require.Less(t, k, 1000)
					img := filepath.Join(dir, "image")
					require.NoError(t, os.WriteFile(img, whole, 0o600))
					dev, err := blockdev.OpenFile(img, 512)
					require.NoError(t, err)
					hit := false
					heal := dev.Inject(blockdev.Fault{Op: blockdev.OpWrite, Skip: k, Hit: func(blockdev.Event) { hit = true },
						Then: func(_ blockdev.Event, r *blockdev.Request) bool { return !c.there || !r.FUA },
						Fail: func(r *blockdev.Request) error { return &blockdev.Error{Op: r.Op, Off: r.Off, Err: c.err} }})
					v, err := ext4.Open(dev, ext4.Options{CommitInterval: time.Hour})
					if !hit {
						require.NoError(t, err)
						heal()
						require.NoError(t, v.Close())
						require.NoError(t, dev.Close())
						require.Greater(t, k, 3)
						return
					}
					if err == nil { // what was refused is tried again
						heal()
						require.NoError(t, v.Close())
					} else {
						require.ErrorIs(t, err, c.err, what)
						require.Contains(t, err.Error(), c.advice, what)
						require.NotContains(t, err.Error(), "run e2fsck on it", what)
						require.Equal(t, 1, strings.Count(err.Error(), c.advice), err.Error())
					}
					require.NoError(t, dev.Close())

					requireUnmarked(t, img, what)
					v, done := open(t, img, ext4.Options{Log: quiet})
					require.False(t, v.ReadOnly(), what)
					root, err := v.Root()
					require.NoError(t, err)
					for _, name := range names {
						f, err := root.Lookup(name)
						require.NoError(t, err, what)
						f.Put()
					}
					root.Put()
					done()
					disktest.Fsck(t, img)
				}
			})
		}
	}
}

// TestGivenUpWithoutRoom: a volume that is closed while there is no room, or is write-protected, loses what was not synchronized and nothing else, and has no mark of an error.
func TestGivenUpWithoutRoom(t *testing.T) {
	for _, why := range []error{blockdev.ErrNoSpace, blockdev.ErrReadOnly} {
		t.Run(why.Error(), func(t *testing.T) {
			img := disktest.Make(t, "16M")
			dev, err := blockdev.OpenFile(img, 512)
			require.NoError(t, err)
			var said []string
			v, err := ext4.Open(dev, ext4.Options{CommitInterval: time.Hour, Log: disktest.Logger(func(line string) { said = append(said, line) })})
			require.NoError(t, err)
			root, err := v.Root()
			require.NoError(t, err)
			create(t, root, "synced").Put()
			require.NoError(t, v.Sync())
			_, err = root.Mkdir("lost", 0o755, 0, 0)
			require.NoError(t, err)
			heal := dev.Inject(blockdev.Fault{Op: blockdev.OpWrite, Err: why})
			require.ErrorIs(t, v.Sync(), why)
			if why == blockdev.ErrReadOnly {
				require.True(t, v.ReadOnly())
				_, err = root.Mkdir("more", 0o755, 0, 0)
				require.Error(t, err)
				heal() // the mark of an error could be written now
			}
			root.Put()
			require.ErrorIs(t, v.Close(), why)
			heal()
			require.NoError(t, dev.Close())
			require.NotContains(t, strings.Join(said, "\n"), "run e2fsck")

			requireUnmarked(t, img, "")
			v, done := open(t, img, ext4.Options{})
			require.False(t, v.ReadOnly())
			root, err = v.Root()
			require.NoError(t, err)
			f, err := root.Lookup("synced")
			require.NoError(t, err)
			require.EqualValues(t, unix.S_IFREG, f.Attr().Mode&unix.S_IFMT)
			f.Put()
			root.Put()
			done()
			disktest.Fsck(t, img)
		})
	}
}
