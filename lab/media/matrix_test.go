package media

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/lab/faultfs"
)

// medium is a way to fail, while writers are writing.
type medium struct {
	name string
	fail func(b *bench)
	// sticky: after the first fsync that fails, none succeeds until the next mount; umount fails, and stat shows read-only.
	sticky bool
	// shut: no fsync of what was begun after the failure succeeds.
	shut bool
	// full: there is no space; umount may be refused until there is. fine: umount succeeds.
	full, fine bool
	// torn: a part of the medium is lost, with acknowledged data; only the errors are checked.
	torn bool
	says string // in the log
}

func rules(all ...faultfs.Rule) func(*bench) {
	return func(b *bench) {
		for _, r := range all {
			b.medium.Add(r)
		}
	}
}

var (
	flushOnce  = faultfs.Rule{Op: faultfs.OpFsync, Times: 1, Drop: true}
	flushLater = faultfs.Rule{Op: faultfs.OpFsync, Skip: 5, Times: 1, Drop: true}
	flushGone  = faultfs.Rule{Op: faultfs.OpFsync, Drop: true}
)

func full(err unix.Errno) faultfs.Rule {
	r := flushOnce
	r.Err = err
	return r
}

var matrix = []medium{
	{name: "healthy", fail: func(*bench) {}, fine: true},
	{name: "one write fails once", fail: rules(faultfs.Rule{Op: faultfs.OpWrite, Times: 1})},
	{name: "a write fails half way, once", fail: rules(faultfs.Rule{Op: faultfs.OpWrite, Times: 1, Part: 512})},
	{name: "some writes fail", fail: rules(faultfs.Rule{Op: faultfs.OpWrite, Skip: 3, Times: 6})},
	{name: "no write works any more", fail: rules(faultfs.Rule{Op: faultfs.OpWrite}), sticky: true, shut: true, says: "image failed"},
	{name: "a part cannot be written", fail: rules(faultfs.Rule{Op: faultfs.OpWrite, Off: 6 << 20, Len: 2 << 20})},
	{name: "one read fails once", fail: rules(faultfs.Rule{Op: faultfs.OpRead, Times: 1}), fine: true},
	{name: "no read works any more", fail: rules(faultfs.Rule{Op: faultfs.OpRead})},
	{name: "a flush fails once and loses", fail: rules(flushOnce), sticky: true, shut: true, says: "a Flush failed"},
	{name: "a later flush fails once and loses", fail: rules(flushLater), sticky: true, says: "is not durable"},
	{name: "flushes fail for good and lose", fail: rules(flushGone), sticky: true, shut: true, says: "a Flush failed"},
	{name: "a flush finds no room and loses", fail: rules(full(unix.ENOSPC)), sticky: true, shut: true, says: "a Flush failed"},
	{name: "a flush is over quota and loses", fail: rules(full(unix.EDQUOT)), sticky: true, shut: true, says: "a Flush failed"},
	{name: "full", fail: func(b *bench) { b.medium.Room(1 << 20) }, full: true, says: "no space left for the image"},
	{name: "full at once", fail: func(b *bench) { b.medium.Room(0) }, full: true, says: "no space left for the image"},
	{name: "read-only", fail: func(b *bench) { b.medium.ReadOnly() }, sticky: true, shut: true, says: "read-only"},
	{name: "vanished", fail: func(b *bench) { b.medium.Vanish() }, sticky: true, shut: true, says: "no such device"},
	{name: "no fallocate", fail: rules(faultfs.Rule{Op: faultfs.OpFallocate, Err: unix.EOPNOTSUPP}), fine: true},
	{name: "fallocate fails", fail: rules(faultfs.Rule{Op: faultfs.OpFallocate})},
	{name: "truncated", fail: func(b *bench) { b.cut(imageSize / 2) }, sticky: true, shut: true, torn: true, says: "was truncated"},
	{name: "truncated and grown again", fail: func(b *bench) { b.cut(imageSize / 2); b.awaitError(); b.cut(imageSize) },
		sticky: true, shut: true, torn: true, says: "was truncated"},
	{name: "deleted", fail: func(b *bench) { require.NoError(b.t, os.Rename(b.backing, b.backing+".away")) }, fine: true},
}

// TestMatrix runs each medium, make test half of them, under all writers at once, with and without the kernel's writeback cache by turns.
func TestMatrix(t *testing.T) {
	rounds := 1
	if s := os.Getenv("LANEFS_MEDIA_ROUNDS"); s != "" {
		var err error
		rounds, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	seed := uint64(1)
	if s := os.Getenv("LANEFS_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	lanefs := build(t)
	for round := range rounds {
		for i, m := range matrix {
			if !disktest.Turn(i, 2) {
				continue
			}
			options := []string{"commit=1", "commit=1,writeback_cache"}[(round+i/2+int(seed/2))%2] // the seed's last bit says which media
			s := seed + uint64(round*len(matrix)+i)
			t.Run(fmt.Sprintf("%s, -o %s, seed %d", m.name, options, s), func(t *testing.T) {
				b := newBench(t, lanefs, options)
				b.run(m, rand.New(rand.NewPCG(s, 0)))
			})
		}
	}
}

// run is one cell.
func (b *bench) run(m medium, rng *rand.Rand) {
	t := b.t
	b.mount()
	b.start(rng)
	for _, w := range b.writers {
		b.awaitAcks(w, 1+rng.IntN(5))
	}
	before := b.acked()
	m.fail(b)
	failed := time.Now()
	b.finish(m)
	t.Logf("%d acknowledged before, %d in all; %s", before, b.acked(), b.firstErrors())
	var refused int
	for _, w := range b.writers {
		refused += len(w.refused)
		if m.shut {
			require.True(t, w.lastBegun.Before(failed), "%s: fsync acknowledged a write that began after the failure", w.name)
		}
		if m.sticky && len(w.refused) > 0 {
			require.False(t, w.ackedAfterRefusal, "%s: fsync failed, and then succeeded", w.name)
		}
	}
	if m.sticky {
		require.NotZero(t, refused, "no writer got an error")
		stat, err := b.lanefs("stat", b.mnt)
		require.NoError(t, err, stat)
		require.Contains(t, stat, "read-only")
	}
	if !m.sticky && rng.IntN(2) == 0 {
		t.Log("the daemon is killed")
		b.kill()
	} else if out, err := b.lanefs("umount", b.mnt); m.sticky {
		require.Error(t, err, "umount reports no error")
		t.Logf("umount: %s", out)
	} else if err != nil && m.full {
		require.Contains(t, out, "make room and unmount again")
		b.medium.Clear()
		out, err := b.lanefs("umount", b.mnt)
		require.NoError(t, err, out)
	} else if m.fine {
		require.NoError(t, err, out)
	}
	if m.says != "" {
		require.Contains(t, b.log(), m.says)
	}
	b.settle()
	if m.torn {
		b.judgeTorn()
	} else {
		b.judge()
	}
}
