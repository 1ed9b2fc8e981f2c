package share

import (
	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/residency"
)

// Transfers of memory that the controller does not reach pass through the pool's stage. Package residency has the stage, package fs the
// file:
//
//  1. The transfers are cut, and placed in a part of the stage, at their file offset modulo 4, so that whole blocks go by DMA.  place
//  2. Read: the drive fills the part, then the copy engine empties it into the memory.  readStaged
//     Write: the copy engine fills the part, then the drive empties it.  writeStaged
//
// The parts of parallel transfers are filled and emptied at the same time.

// read carries out transfers as f.Read does. All have a *residency.Memory.
func read(end ends, f *fs.External, ts []ext4.Transfer) {
	direct := ts
	for i := range ts {
		if ts[i].Mem.(*residency.Memory).Staged() {
			direct = nil
			break
		}
	}
	if direct != nil {
		f.Read(ts)
		return
	}
	for i := range ts {
		if !ts[i].Mem.(*residency.Memory).Staged() {
			f.Read(ts[i : i+1])
		}
	}
	readStaged(end, f, ts)
}

// staged is a piece of a transfer, and where it lies in the stage.
type staged struct {
	of   int   // index of the transfer
	done int   // of the transfer before it
	n    int   // bytes
	at   int   // in the part
	off  int64 // in the file
}

// stageAlign is what pieces in a part begin at a multiple of, but for their file offset modulo 4: a cache line.
const stageAlign = 64

// place fills a part with what is left of transfers from number of, of which done bytes are placed. It returns where it stopped.
func place(ts []ext4.Transfer, of, done int) (all []staged, _, _ int) {
	at := 0
	for of < len(ts) {
		t := &ts[of]
		if !t.Mem.(*residency.Memory).Staged() || t.N <= 0 {
			of, done = of+1, 0
			continue
		}
		off := t.Off + int64(done)
		start := (at+stageAlign-1)/stageAlign*stageAlign + int(off&3)
		n := min(t.N-done, residency.PartSize-start)
		if n <= 0 || n < t.N-done && len(all) > 0 && t.N-done <= residency.PartSize/2 { // better whole in the next part
			break
		}
		all = append(all, staged{of, done, n, start, off})
		at, done = start+n, done+n
		if done == t.N {
			of, done = of+1, 0
		}
	}
	return all, of, done
}

func readStaged(end ends, f *fs.External, ts []ext4.Transfer) {
	for of, done := 0, 0; of < len(ts); {
		var pieces []staged
		if pieces, of, done = place(ts, of, done); len(pieces) > 0 {
			readPart(end, f, ts, pieces)
		}
	}
}

// readPart reads pieces. One behind the end of its file's bytes, or behind an error of its transfer, is left out.
func readPart(end ends, f *fs.External, ts []ext4.Transfer, pieces []staged) {
	part, err := ts[pieces[0].of].Mem.(*residency.Memory).Part(end.tenant, end.left)
	if err == nil {
		defer part.Give()
	}
	through := make([]ext4.Transfer, len(pieces))
	for i, p := range pieces {
		through[i] = ext4.Transfer{Off: p.off, N: p.n, Mem: part, At: p.at}
		if t := &ts[p.of]; err != nil {
			t.Err = err
		} else if t.Done < p.done {
			through[i].N = 0
		}
	}
	if err != nil {
		return
	}
	f.Read(through)
	for i, p := range pieces {
		t, r := &ts[p.of], &through[i]
		if r.N == 0 {
			continue
		}
		if t.Err = r.Err; t.Err == nil {
			t.Err = part.To(t.Mem.(*residency.Memory), t.At+p.done, p.at, r.Done)
		}
		if t.Err == nil {
			t.Done += r.Done
		}
	}
}

// write writes n bytes of m from at to the file at off, and returns how many: fewer only with an error.
func write(end ends, f *fs.External, off int64, m *residency.Memory, at, n int) (done int, err error) {
	if !m.Staged() {
		return writeOne(end, f, off, m, at, n)
	}
	part, err := m.Part(end.tenant, end.left)
	if err != nil {
		return 0, err
	}
	defer part.Give()
	for done < n {
		start := int((off + int64(done)) & 3)
		k := min(n-done, residency.PartSize-start)
		if err := part.From(m, at+done, start, k); err != nil {
			return done, err
		}
		w, err := writeOne(end, f, off+int64(done), part, start, k)
		if done += w; err != nil {
			return done, err
		}
	}
	return done, nil
}

func writeOne(end ends, f *fs.External, off int64, m ext4.Target, at, n int) (int, error) {
	t := [1]ext4.Transfer{{Off: off, N: n, Mem: m, At: at, Stop: end.stop}}
	f.WriteAll(t[:])
	return t[0].Done, t[0].Err
}
