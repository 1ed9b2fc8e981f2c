package md

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
)

// TestKernel assembles what the kernel's md made, and finds each block of the array where the kernel had put it.
func TestKernel(t *testing.T) {
	text, err := os.ReadFile("testdata/kernel.txt")
	require.NoError(t, err)
	arrays := 0
	for _, part := range strings.Split(string(text), "\narray ")[1:] {
		lines := strings.Split(strings.TrimSpace(part), "\n")
		arrays++
		t.Run(lines[0], func(t *testing.T) {
			const page = 4096
			var all []Member
			var want int64 // blocks that were placed
			for len(lines) > 1 {
				var kib, at int64
				var super string
				_, err := fmt.Sscanf(lines[1], "member %d %d %s", &kib, &at, &super)
				require.NoError(t, err)
				b, err := hex.DecodeString(super)
				require.NoError(t, err)
				d := blockdev.NewMem(kib<<10, 512)
				defer d.Close()
				_, err = d.File().WriteAt(b, at)
				require.NoError(t, err)
				for _, run := range strings.Fields(lines[2])[1:] {
					var from, first, n int64
					_, err := fmt.Sscanf(run, "%d:%d:%d", &from, &first, &n)
					require.NoError(t, err)
					for i := range n {
						var mark [8]byte
						binary.LittleEndian.PutUint64(mark[:], uint64(first+i)+1)
						_, err := d.File().WriteAt(mark[:], from+i*page)
						require.NoError(t, err)
					}
					want += n
				}
				all, lines = append(all, Member{fmt.Sprint("member ", len(all)), d}), append(lines[:1:1], lines[3:]...)
			}
			d, err := Open(all)
			require.NoError(t, err)
			size := d.Info().Size()
			b, err := d.Alloc(int(size))
			require.NoError(t, err)
			defer b.Release()
			require.NoError(t, d.Read(0, b.Slice(0, int(size))))
			var got int64
			for i := int64(0); i < int64(size); i += page {
				if v := binary.LittleEndian.Uint64(b.Bytes()[i:]); v > 0 {
					require.EqualValues(t, i/page+1, v)
					got++
				}
			}
			require.Equal(t, want, got)
			require.False(t, bytes.Equal(make([]byte, page), b.Bytes()[:page]))
		})
	}
	require.Equal(t, 6, arrays)
}
