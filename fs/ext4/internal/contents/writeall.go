package contents

import (
	"time"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// Writing many ranges of a file from memory that the CPU may not reach:
//
//  1. under Mu, shared: each transfer that only replaces whole blocks is planned: they are written, within the size, and DMA reaches them
//  2. one Device.Do for all of them, in parallel over the queue pairs; each transfer has its own errors
//  3. times, once
//  4. the others one by one, as WriteFrom does: what allocates, extends, converts, or has edges

// WriteAll carries out the transfers from memory to the file, each with an error of its own, and returns how many of them were planned.
// They do not overlap, and are carried out in any order.
func WriteAll(i *volume.Inode, ts []Transfer) (planned int) {
	if i.FS.Writable() {
		planned = overwriteAll(i, ts)
	}
	for k := range ts {
		t := &ts[k]
		if !t.planned {
			t.Done, t.Err = WriteFrom(i, t.Off, t.Mem, t.At, t.N, t.Stop)
		}
		t.planned = false
	}
	return planned
}

// overwriteAll carries out the transfers that it can plan, and marks them.
func overwriteAll(i *volume.Inode, ts []Transfer) (planned int) {
	i.Mu.RLock()
	if !replaceable(i) {
		i.Mu.RUnlock()
		return 0
	}
	i.FS.LastBlocks.Drop(i)
	p := newPlanner(i)
	for k := range ts {
		t := &ts[k]
		t.first = len(p.reqs)
		stopped := t.Stop != nil && t.Stop() != nil // and asked again in its turn
		if t.planned = !stopped && p.overwrite(t); t.planned {
			planned++
		} else {
			p.reqs = p.reqs[:t.first]
		}
		t.last = len(p.reqs)
	}
	p.look.done()
	if planned > 0 {
		_ = i.FS.Dev.Do(p.reqs...) // each request has its own
	}
	written := int64(0)
	for k := range ts {
		if t := &ts[k]; t.planned {
			t.Done, t.Err = t.N, nil
			for _, r := range p.reqs[t.first:t.last] {
				written += int64(r.Length())
				if t.Err == nil {
					t.Err = r.Err
				}
			}
			if t.Err != nil {
				t.Done = 0 // how much of it is on the medium is not known
			}
		}
	}
	i.FS.Counters.DataWritten.Add(written)
	p.done()
	now := time.Now()
	fresh := timesFresh(i, now)
	i.Mu.RUnlock()
	var times error
	if planned > 0 && !fresh {
		times = touch(i, now)
	}
	for k := range ts {
		if t := &ts[k]; t.planned {
			if t.Err == nil && times != nil {
				t.Done, t.Err = 0, times
			}
			t.Err = i.FS.Note(t.Err)
		}
	}
	return planned
}

// touch sets the times of an overwrite in a transaction.
func touch(i *volume.Inode, now time.Time) error {
	return i.FS.Change(nil, func(o *volume.Op) error {
		o.Lock(i)
		return o.Do(2, func() error { return i.StoreTimes(o, func() { i.Touch(now) }) })
	})
}

// overwrite makes the requests of one transfer. It reports false if the transfer is not to be planned. Mu is held.
func (p *planner) overwrite(t *Transfer) bool {
	f, w := p.i.FS, p.look
	mask := int64(f.BlockSize - 1)
	if t.Off < 0 || t.At < 0 || t.N <= 0 || t.N > maxDirect || (t.Off|int64(t.N))&mask != 0 || t.At%dmaAlign != 0 ||
		t.Off > int64(p.i.Disk.Size)-int64(t.N) {
		return false
	}
	bits := f.BlockBits
	for w.at(f.Logical(t.Off), f.LogicalEnd(t.Off+int64(t.N))); w.next(); {
		x := w.x
		if x.Hole() || x.Unwritten {
			return false
		}
		at := t.At + int(int64(x.Lblk)<<bits-t.Off)
		p.add(blockdev.OpWrite, blockdev.Bytes(x.Pblk)<<bits, t.Mem.Slice(at, int(x.Len)<<bits))
	}
	return w.err == nil // WriteFrom meets the error again
}
