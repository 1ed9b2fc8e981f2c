package contents

import "github.com/lanefs/lanefs/blockdev"

// ioList collects transfers. Neighbours on the device and in the buffer become one.
type ioList struct {
	reqs  []*blockdev.Request
	first [1]blockdev.Request
	bufs  [1]blockdev.Slice
	ptr   [1]*blockdev.Request
	bytes int64
}

func (l *ioList) add(op blockdev.Op, off blockdev.Bytes, s blockdev.Slice) {
	l.bytes += int64(s.N)
	if k := len(l.reqs); k > 0 {
		r := l.reqs[k-1]
		b := &r.Bufs[len(r.Bufs)-1]
		if r.Op == op && b.Buf == s.Buf && b.Off+b.N == s.Off && r.Off+r.Len == off {
			b.N += s.N
			r.Len += blockdev.Bytes(s.N)
			return
		}
		l.reqs = append(l.reqs, &blockdev.Request{Op: op, Off: off, Len: blockdev.Bytes(s.N), Bufs: []blockdev.Slice{s}})
		return
	}
	// The common case, one transfer, allocates nothing.
	l.bufs[0] = s
	l.first[0] = blockdev.Request{Op: op, Off: off, Len: blockdev.Bytes(s.N), Bufs: l.bufs[:]}
	l.ptr[0] = &l.first[0]
	l.reqs = l.ptr[:]
}

func (l *ioList) do(dev blockdev.Device) error {
	if len(l.reqs) == 0 {
		return nil
	}
	return dev.Do(l.reqs...)
}
