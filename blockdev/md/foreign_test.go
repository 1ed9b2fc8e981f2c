package md

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
)

// TestForeign: metadata that are not ours are found where they are, whatever the device's size and blocks; a device without any has none.
func TestForeign(t *testing.T) {
	drbd := binary.BigEndian.AppendUint32(make([]byte, 60), 0x8374026c)
	for _, c := range []struct {
		size, block, at int64
		sign            []byte
	}{
		{1 << 20, 512, 1<<20 - 1024, []byte(intelSign)},
		{1<<20 + 512, 512, 1<<20 - 512, []byte(intelSign)},
		{1<<20 + 3072, 512, 1<<20 + 2048, []byte(intelSign)},
		{1 << 20, 4096, 1<<20 - 8192, []byte(intelSign)},
		{1 << 20, 512, 1<<20 - 4096, drbd},
		{1<<20 + 512, 512, 1<<20 - 4096, drbd},
		{1 << 20, 4096, 1<<20 - 4096, drbd},
		{1<<20 + 512, 512, 1<<20 - 64<<10, []byte{0xfc, 0x4e, 0x2b, 0xa9, 0, 0, 0, 0}},
	} {
		d := blockdev.NewMem(c.size, c.block)
		defer d.Close()
		s, err := Find(d)
		require.NoError(t, err)
		require.Nil(t, s)
		_, err = d.File().WriteAt(c.sign, c.at)
		require.NoError(t, err)
		_, err = Find(d)
		var foreign *Foreign
		require.ErrorAs(t, err, &foreign, "%d bytes, blocks of %d, %q", c.size, c.block, c.sign)
		require.EqualValues(t, c.at, foreign.At)
	}
	for _, size := range []int64{512, 4096, 8192, 64 << 10} {
		d := blockdev.NewMem(size, 512)
		defer d.Close()
		_, err := Find(d)
		require.NoError(t, err)
	}
}
