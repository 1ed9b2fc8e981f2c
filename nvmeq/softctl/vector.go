package softctl

import (
	"cmp"
	"errors"
	"io"

	"github.com/lanefs/lanefs/gpu/copyengine"
	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// piece is a part of a command's data: n bytes from off of a region.
type piece struct {
	r      *region
	off, n int64
}

// vector is where a command's data is in memory, in order. Neighbours are merged, so that a buffer which is contiguous
// in memory is one piece however many PRPs name it. Each queue has one and reuses it.
type vector struct {
	pieces []piece
	n      int64
	staged bool // some of it has no host view: data goes through stage
	stage  []byte
	lent   bool // stage is the mover's
	buf    media.Buffers
	held   []*media.Chunk // of the image's pages, that copies read
	mover  copyengine.Mover
	least  int64     // of a stage; 0: stageLeast
	prps   [512]byte // part of a PRP list
}

func (v *vector) reset() {
	clear(v.pieces) // the regions belong to a table that may be gone by the next command
	v.pieces, v.n, v.staged = v.pieces[:0], 0, false
}

func (v *vector) add(r *region, off, n int64) {
	v.n += n
	if k := len(v.pieces) - 1; k >= 0 {
		if p := &v.pieces[k]; p.r == r && p.off+p.n == off {
			p.n += n
			return
		}
	}
	v.pieces = append(v.pieces, piece{r, off, n})
	v.staged = v.staged || r.host == nil
}

// host is where in host memory the data is, or goes first: the stage, or the vector's memory itself. It is valid until the next call.
func (v *vector) host() *media.Buffers {
	v.buf.Reset()
	if v.staged {
		v.buf.Add(v.stage[:v.n])
	} else {
		for _, p := range v.pieces {
			v.buf.Add(p.r.host[p.off : p.off+p.n])
		}
	}
	return &v.buf
}

var errMover = errors.New("memory without a host view could not be reached")

// broken is errMover. After an ErrStuck the device may use the stage yet, and the vector has it no more.
func (v *vector) broken(err error) error {
	if errors.Is(err, copyengine.ErrStuck) {
		v.leave()
	}
	return errMover
}

// leave leaves the stage to the device.
func (v *vector) leave() {
	if v.lent {
		v.mover.(copyengine.Stager).Leave(v.stage)
	}
	v.stage, v.lent = nil, false
}

// gather prepares the data for a write to the image: memory without a host view is copied out.
func (v *vector) gather() error {
	if !v.staged {
		return nil
	}
	v.grow(v.n)
	at := v.stage
	for _, p := range v.pieces {
		if p.r.host != nil {
			copy(at, p.r.host[p.off:p.off+p.n])
		} else if err := v.mover.Read(at[:p.n], p.r.mem, p.r.off+p.off); err != nil {
			return v.broken(err)
		}
		at = at[p.n:]
	}
	return nil
}

// scatter is the other way round, after a read.
func (v *vector) scatter() error {
	if v.staged {
		return v.put(v.stage[:v.n])
	}
	return nil
}

// pipeStep is how much of a staged read is read before its copy is begun, into one half of the stage while the other half is
// copied. A device's copy engine takes a few microseconds between two copies, so the parts are large; but the stages of all queues are
// pinned when they are first used, which takes longer than reading them, so they are no larger.
const pipeStep = media.ReadStep

// readStaged reads from the image part by part: from its own pages where they can be had, else through the stage.
func (v *vector) readStaged(m media.Medium, off int64) error {
	mover, ok := v.mover.(copyengine.Piper)
	if !ok {
		v.grow(v.n)
		if err := m.Read(v.host(), off); err != nil {
			return err
		}
		return v.scatter()
	}
	p, err := mover.Pipe()
	if err != nil {
		return errMover
	}
	next, into := v.pieces, int64(0) // where the next byte goes
	half := int64(0)
	for lo := int64(0); lo < v.n && err == nil; {
		part := v.view(m, off+lo, v.n-lo)
		if part == nil {
			n := min(pipeStep, v.n-lo)
			m.Missed(off+lo, n)
			v.grow(min(2*pipeStep, v.n))
			part, half = v.stage[half:half+n], pipeStep-half
			v.buf.Reset()
			v.buf.Add(part)
			if err = m.Read(&v.buf, off+lo); err != nil {
				break
			}
			if werr := p.Wait(); werr != nil { // else the other half is free then
				err = v.broken(werr)
			}
		}
		lo += int64(len(part))
		for len(part) > 0 && err == nil {
			to := next[0]
			b := part[:min(to.n-into, int64(len(part)))]
			if to.r.host != nil {
				copy(to.r.host[to.off+into:], b)
			} else if werr := p.Write(to.r.mem, to.r.off+to.off+into, b); werr != nil {
				err = v.broken(werr)
			}
			part = part[len(b):]
			if into += int64(len(b)); into == to.n {
				next, into = next[1:], 0
			}
		}
	}
	if cerr := p.Close(); cerr != nil {
		if cerr = v.broken(cerr); err == nil {
			err = cerr
		}
	}
	for _, c := range v.held {
		c.Release()
	}
	v.held = v.held[:0]
	return err
}

// view is what comes next of the image's own pages, held until the copies have ended. The CPU does not touch them.
func (v *vector) view(m media.Medium, off, n int64) []byte {
	for _, p := range v.pieces {
		if p.r.host != nil {
			return nil
		}
	}
	c, b := m.View(off, n, true)
	if c != nil {
		v.held = append(v.held, c)
	}
	return b
}

// put copies b, at most the vector's length, to memory.
func (v *vector) put(b []byte) error {
	for _, p := range v.pieces {
		n := min(p.n, int64(len(b)))
		if p.r.host != nil {
			copy(p.r.host[p.off:p.off+n], b)
		} else if err := v.mover.Write(p.r.mem, p.r.off+p.off, b[:n]); err != nil {
			return v.broken(err)
		}
		if b = b[n:]; len(b) == 0 {
			break
		}
	}
	return nil
}

// get copies the whole vector out of memory into b.
func (v *vector) get(b []byte) error {
	if int64(len(b)) < v.n {
		return io.ErrShortBuffer
	}
	for _, p := range v.pieces {
		if p.r.host != nil {
			copy(b[:p.n], p.r.host[p.off:])
		} else if err := v.mover.Read(b[:p.n], p.r.mem, p.r.off+p.off); err != nil {
			return v.broken(err)
		}
		b = b[p.n:]
	}
	return nil
}

// grow makes stage n bytes long at least. No copy may be under way.
func (v *vector) grow(n int64) {
	if int64(len(v.stage)) >= n {
		return
	}
	v.unstage()
	if s, ok := v.mover.(copyengine.Stager); ok {
		if b, err := s.Stage(max(n, cmp.Or(v.least, stageLeast))); err == nil {
			v.stage, v.lent = b, true
			return
		}
	}
	v.stage = make([]byte, n)
}

// stageLeast is what a Stager is asked for at least: so much that most queues ask once.
const stageLeast = 2 * pipeStep

// unstage gives the stage back to the mover, if it is the mover's.
func (v *vector) unstage() {
	if v.lent {
		v.mover.(copyengine.Stager).Unstage(v.stage)
	}
	v.stage, v.lent = nil, false
}
