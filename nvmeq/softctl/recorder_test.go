package softctl

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// TestRecorderFollowsTheController records real commands, and what a cut leaves agrees with what was acknowledged.
func TestRecorderFollowsTheController(t *testing.T) {
	path := newImage(t, testSize)
	seeded := random(77, make([]byte, 8192))
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(seeded, 1<<20)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	rec := media.NewRecorder()
	require.Zero(t, rec.Position())
	h := newHostOn(t, path, Options{Recorder: rec, Namespaces: 2}).enable()
	q := h.queue(1, 16)
	b, at := h.alloc(4096)
	random(1, b)
	first := bytes.Clone(b)
	h.expect(success, q, rw(1, 1, 8, 8).prp(at, 0))
	h.expect(success, q, cmdOf(0, 1))
	acknowledged := rec.Position()
	require.Equal(t, 2, acknowledged)
	random(2, b)
	second := bytes.Clone(b)
	h.expect(success, q, rw(1, 1, 8, 8).prp(at, 0))
	random(3, b)
	fua := bytes.Clone(b)
	h.expect(success, q, rw(1, 2, 0, 8).prp(at, 0).dw(12, 7|1<<30))
	h.expect(success, q, rw(8, 1, 2048, 16))
	require.Equal(t, 5, rec.Position())

	p, err := media.NewReplay(rec.Recording())
	require.NoError(t, err)
	defer p.Close()
	get := func(off, n int64) []byte {
		r := make([]byte, n)
		_, err := p.ReadAt(r, off)
		require.NoError(t, err)
		return r
	}
	old, recent, zeroed, torn := false, false, false, false
	for seed := range uint64(100) {
		for cut := acknowledged; cut <= 5; cut++ {
			require.NoError(t, p.Cut(cut, seed))
			switch now := get(4096, 4096); {
			case bytes.Equal(now, first):
				old = true
			case bytes.Equal(now, second):
				recent = true
			default:
				torn = true
				for i := 0; i < 4096; i += 512 {
					require.True(t, bytes.Equal(now[i:i+512], first[i:i+512]) || bytes.Equal(now[i:i+512], second[i:i+512]))
				}
			}
			if cut >= 4 {
				require.True(t, bytes.Equal(fua, get(testSize/2, 4096)), "FUA survives")
			}
			zeroed = zeroed || cut == 5 && bytes.Equal(make([]byte, 8192), get(1<<20, 8192))
		}
	}
	require.True(t, old && recent && zeroed && torn)

	// A shutdown flushes: then there is one state only, and it is the file's.
	h.c.Write32(0x14, enableCC|1<<14)
	require.NoError(t, h.c.Close())
	full := rec.Recording()
	p2, err := media.NewReplay(full)
	require.NoError(t, err)
	defer p2.Close()
	want := h.file()
	for seed := range uint64(20) {
		require.NoError(t, p2.Cut(full.Len(), seed))
		got := make([]byte, testSize)
		_, err = p2.ReadAt(got, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
	}

	// The same recorder goes on with the next controller, on the same image only.
	h = newHostOn(t, path, Options{Recorder: rec}).enable()
	q = h.queue(1, 16)
	_, at = h.alloc(4096)
	n := rec.Position()
	h.expect(success, q, rw(1, 1, 0, 8).prp(at, 0))
	require.Equal(t, n+1, rec.Position())
	_, err = Open(newImage(t, 4096), Options{Recorder: rec})
	require.ErrorContains(t, err, "recorder")
}

// TestCommandsUnderWay: what the host had rung for when power went may be there although it never completed.
func TestCommandsUnderWay(t *testing.T) {
	rec := media.NewRecorder()
	h := newHost(t, Options{Recorder: rec}).enable()
	q := h.queue(1, 16)
	b, at := h.alloc(4096)
	b[0] = 1
	for i := range uint64(8) {
		h.put(q, rw(1, 1, i*8, 8).prp(at, 0))
	}
	h.ring(q) // all at once
	h.c.Step(1)
	p, err := media.NewReplay(rec.Recording())
	require.NoError(t, err)
	defer p.Close()
	ahead := false
	for seed := range uint64(100) {
		require.NoError(t, p.Cut(2, seed))
		var got [1]byte
		_, err := p.ReadAt(got[:], 6*4096)
		require.NoError(t, err)
		ahead = ahead || got[0] == 1
	}
	require.True(t, ahead)
}
