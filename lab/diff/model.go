package diff

import (
	"bytes"
	"crypto/sha256"
	"fmt"

	"golang.org/x/sys/unix"
)

// model is the data profile's files in memory. It applies the results that one side returned, and gives the bytes that a read
// must return then.
type model struct {
	files map[string]*modelFile
	slots [Slots]*modelSlot
}

type modelFile struct{ b []byte }

type modelSlot struct {
	f     *modelFile
	flags int
	pos   int64
}

func newModel() *model { return &model{files: map[string]*modelFile{}} }

// put writes p at off, over a hole if there is one between.
func (f *modelFile) put(off int64, p []byte) {
	if len(p) == 0 {
		return
	}
	f.resize(max(int64(len(f.b)), off+int64(len(p))))
	copy(f.b[off:], p)
}

func (f *modelFile) resize(n int64) {
	if n <= int64(len(f.b)) {
		f.b = f.b[:n:n]
		return
	}
	f.b = append(f.b, make([]byte, n-int64(len(f.b)))...)
}

func (f *modelFile) at(off, n int64) []byte {
	size := int64(len(f.b))
	return f.b[min(off, size):min(off+n, size)]
}

// step applies one Op and its Result. It returns what is wrong with the Result, or "".
func (m *model) step(o *Op, r *Result) string {
	switch o.Kind {
	case OpOpen:
		m.slots[o.FD] = nil
		if r.Errno == 0 {
			m.open(o)
		}
		return ""
	case OpClose:
		m.slots[o.FD] = nil
		return ""
	case OpUnlink:
		if r.Errno == 0 {
			delete(m.files, o.Path)
		}
		return ""
	case OpTruncate:
		if f := m.files[o.Path]; f != nil && r.Errno == 0 {
			f.resize(o.Len)
		}
		return ""
	}
	s := m.slots[o.FD]
	if s == nil || r.Errno != 0 {
		return ""
	}
	if bad := m.stepSlot(s, o, r); bad != "" {
		return bad
	}
	for _, p := range r.Probes {
		if p.What == "slot" && p.Errno == 0 && p.Stat.Size != int64(len(s.f.b)) {
			return fmt.Sprintf("size is %d and should be %d", p.Stat.Size, len(s.f.b))
		}
	}
	return ""
}

func (m *model) open(o *Op) {
	f := m.files[o.Path]
	if f == nil {
		f = &modelFile{}
		m.files[o.Path] = f
	}
	if o.Flags&unix.O_TRUNC != 0 {
		f.resize(0)
	}
	m.slots[o.FD] = &modelSlot{f: f, flags: o.Flags}
}

func (m *model) stepSlot(s *modelSlot, o *Op, r *Result) string {
	f := s.f
	expect := func(want []byte) string {
		if int64(len(want)) != r.Ret || !bytes.Equal(want, r.Data) {
			return "read, and what was written: " + diffBytes(r.Data, want)
		}
		return ""
	}
	switch o.Kind {
	case OpPread, OpMmapRead:
		return expect(f.at(o.Off, o.Len))
	case OpRead:
		want := f.at(s.pos, o.Len)
		s.pos += int64(len(want))
		return expect(want)
	case OpPwrite, OpPwritev, OpWrite:
		off := o.Off
		if o.Kind == OpWrite {
			off = s.pos
		}
		if s.flags&unix.O_APPEND != 0 {
			off = int64(len(f.b))
		}
		f.put(off, filled(o)[:r.Ret])
		if o.Kind == OpWrite {
			s.pos = off + r.Ret
		}
	case OpMmapWrite:
		p := make([]byte, r.Ret)
		Fill(p, o.Seed, o.Off)
		copy(f.b[min(o.Off, int64(len(f.b))):], p)
	case OpLseek:
		s.pos = r.Ret
	case OpFtruncate:
		f.resize(o.Len)
	case OpFallocate:
		f.fallocate(o)
	case OpCopyRange, OpSendfile:
		to := m.slots[o.FD2]
		if to == nil {
			return "a copy to a file that is not open succeeded"
		}
		p := bytes.Clone(f.at(o.Off, r.Ret))
		if int64(len(p)) != r.Ret {
			return fmt.Sprintf("copied %d bytes of a file of %d from %d on", r.Ret, len(f.b), o.Off)
		}
		switch {
		case o.Kind == OpCopyRange:
			to.f.put(o.Off2, p)
		case to.flags&unix.O_APPEND != 0:
			to.pos = int64(len(to.f.b)) + r.Ret
			to.f.put(int64(len(to.f.b)), p)
		default:
			to.f.put(to.pos, p)
			to.pos += r.Ret
		}
	}
	return ""
}

func (f *modelFile) fallocate(o *Op) {
	size := int64(len(f.b))
	end := o.Off + o.Len
	switch o.Flags {
	case 0:
		f.resize(max(size, end))
	case punch | keepSize, zero | keepSize:
		clear(f.at(o.Off, o.Len))
	case zero:
		f.resize(max(size, end))
		clear(f.at(o.Off, o.Len))
	}
}

// check compares the files with a tree. Names in the tree have prefix before them.
func (m *model) check(tree []Entry, prefix string) []string {
	var d []string
	entries := byPath(tree)
	for name, f := range m.files {
		e := entries[join(prefix, name)]
		switch {
		case e == nil:
			d = append(d, fmt.Sprintf("names: %q is gone", name))
		case e.Size != int64(len(f.b)):
			d = append(d, fmt.Sprintf("size: %q has %d bytes and should have %d", name, e.Size, len(f.b)))
		case e.Sum != sha256.Sum256(f.b):
			d = append(d, fmt.Sprintf("content: %q does not hold what was written", name))
		}
	}
	return d
}

// follow applies an Op to the model. An fallocate that failed with ENOSPC has changed nothing that can be read: the run
// without another side to compare with checks that.
func (p *proc) follow(o *Op, r *Result) string {
	if bad := p.model.step(o, r); bad != "" {
		return bad
	}
	s := p.model.slots[o.FD]
	if s == nil || r.Errno != unix.ENOSPC || o.Kind != OpFallocate {
		return ""
	}
	got, err := p.do(&Op{Kind: OpPread, FD: o.FD, Len: 4 * dataMaxSize})
	switch {
	case err != nil:
		return err.Error()
	case got[0].Errno != 0:
		return "read after ENOSPC: " + errnoName(got[0].Errno)
	case !bytes.Equal(got[0].Data, s.f.b):
		return "an fallocate without room changed the file: " + diffBytes(got[0].Data, s.f.b)
	}
	return ""
}
