package jbd2

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// noPart has nothing to put right.
type noPart struct{}

func (noPart) PutBack([]byte) {}

// TestSavePartWhole: what SavePart keeps of a block is whole, also when another operation is in the middle of a change of it.
func TestSavePartWhole(t *testing.T) {
	const off, n = 256, 64
	_, m := newLogged(t, Config{})
	h, err := m.j.Begin(1)
	require.NoError(t, err)
	buf, err := m.c.Get(7)
	require.NoError(t, err)

	buf.Lock()
	fillPart := func(from, to int) { copy(buf.Data()[off+from:off+to], bytes.Repeat([]byte{0xab}, to-from)) }
	fillPart(0, n/2)
	saved := make(chan struct{})
	go func() {
		h.SavePart(buf, off, n, noPart{})
		close(saved)
	}()
	select {
	case <-saved:
	case <-time.After(100 * time.Millisecond): // it waits
	}
	fillPart(n/2, n)
	h.DirtyShared(buf)
	buf.Unlock()
	<-saved

	buf.Lock()
	clear(buf.Data()[off : off+n])
	buf.Unlock()
	require.True(t, h.Undo())
	require.Equal(t, bytes.Repeat([]byte{0xab}, n), buf.Data()[off:off+n])
	buf.Put()
	require.NoError(t, h.End())
	require.NoError(t, m.j.Close())
	require.NoError(t, m.c.Close())
}
