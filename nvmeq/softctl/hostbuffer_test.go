package softctl

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHostBuffer: the Host Memory Buffer is taken as the specification has it, and what the host does to it is found.
func TestHostBuffer(t *testing.T) {
	const size = 64 << 10
	h := newHost(t, Options{HostBuffer: size, HostBufferLeast: 8192}).enable()
	mem, at := h.alloc(size)
	list, listAt := h.alloc(4096)
	le := binary.LittleEndian
	piece := func(i int, at uint64, pages uint32) {
		le.PutUint64(list[16*i:], at)
		le.PutUint32(list[16*i+8:], pages)
	}
	set := func(want Status, on, pages uint32, at uint64, n uint32) {
		t.Helper()
		c := cmdOf(opSetFeatures, 0)
		c[10], c[11], c[12], c[13], c[14], c[15] = featHostBuffer, on, pages, uint32(at), uint32(at>>32), n
		require.Equal(t, want, h.adminDo(c).status()&^statusMore)
	}
	has := func(want int64) {
		t.Helper()
		n, err := h.c.HostBuffer()
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	piece(0, at, 2)
	piece(1, at+32<<10, 8)
	set(invalidField, 1, 1, listAt, 1)          // less than the least
	set(invalidField, 1, 10, listAt+8, 2)       // a list off its alignment
	set(invalidField, 1, 10, listAt, 0)         // no list
	set(invalidField, 1, 11, listAt, 2)         // another size than the pieces'
	set(invalidField, 1, 10, at+64<<20, 2)      // a list that is nowhere
	piece(1, at+32<<10+512, 8)                  // off the pages
	set(invalidField, 1, 10, listAt, 2)         //
	piece(1, at+64<<20, 8)                      // nowhere
	set(dataTransferError, 1, 10, listAt, 2)    //
	piece(1, at+32<<10, 8)                      //
	set(success, 0, 0, 0, 0)                    // off, which it is
	set(success, 1, 10, listAt, 2)              //
	set(commandSequenceError, 1, 10, listAt, 2) // on, which it is
	has(40 << 10)

	get := cmdOf(opGetFeatures, 0)
	b, to := h.alloc(4096)
	get[10] = featHostBuffer
	e := h.adminDo(get.prp(to, 0))
	require.Equal(t, success, e.status())
	require.EqualValues(t, 1, e[0])
	require.EqualValues(t, 10, le.Uint32(b[0:]))
	require.Equal(t, listAt, le.Uint64(b[4:]))
	require.EqualValues(t, 2, le.Uint32(b[12:]))

	mem[32<<10+4096]++
	_, err := h.c.HostBuffer()
	require.ErrorContains(t, err, "the host wrote to")
	set(success, 0, 0, 0, 0)
}
