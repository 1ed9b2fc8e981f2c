package fs

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
)

// stacks waits until a goroutine is in all of the functions.
func stacks(functions ...string) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		all := make([]byte, 4<<20)
		all = all[:runtime.Stack(all, true)]
	next:
		for one := range bytes.SplitSeq(all, []byte("\n\n")) {
			for _, f := range functions {
				if !bytes.Contains(one, []byte(f+"(")) {
					continue next
				}
			}
			return nil
		}
	}
	return fmt.Errorf("no goroutine gets to %q", functions)
}

// TestLookupOfBusyFileDelaysNoOther makes a write wait for the device, looks up its file, which waits for the write, and works on with
// other names.
func TestLookupOfBusyFileDelaysNoOther(t *testing.T) {
	m := newMount(t, Options{})
	require.NoError(t, os.Mkdir(m.path("links"), 0o755))
	require.NoError(t, os.Mkdir(m.path("others"), 0o755))
	f, err := os.Create(m.path("file"))
	require.NoError(t, err)
	defer f.Close()
	// The kernel knows the file by its first name only.
	root, err := m.vol.Root()
	require.NoError(t, err)
	links, err := root.Lookup("links")
	require.NoError(t, err)
	in, err := root.Lookup("file")
	require.NoError(t, err)
	require.NoError(t, links.Link(in, "second"))
	for _, i := range []interface{ Put() }{in, links, root} {
		i.Put()
	}
	looked := make(chan error, 1)
	during(t, m.dev, blockdev.Fault{Op: blockdev.OpWrite, Times: 1}, func() error {
		_, err := f.Write(bytes.Repeat([]byte{'a'}, 64<<10))
		return err
	}, func() error {
		go func() {
			var st unix.Stat_t
			looked <- unix.Stat(m.path("links", "second"), &st)
		}()
		if err := stacks("fs.(*rawFS).Lookup", "ext4.(*Inode).Attr"); err != nil {
			return err
		}
		for i := range 10 {
			name := m.path("others", fmt.Sprint(i))
			if err := os.WriteFile(name, []byte("new"), 0o600); err != nil {
				return err
			}
			if err := os.Remove(name); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, <-looked)
}
