package iofault

import (
	"errors"
	"fmt"
	"slices"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/md"
	"github.com/lanefs/lanefs/blockdev/md/mdtest"
)

// A layout's volume may be on an md array. Then the members are views of the one device that faults are made in, each with the array's chunks that
// are its own, at the addresses that they have there: so the device's content is the volume, which is judged as that of any other layout, and a
// fault hits what one member was asked for.

// arrayChunk is that of an array's, in bytes; as many are before a member's data, and have its metadata.
const arrayChunk = 16 << 10

// view is a member.
type view struct {
	blockdev.Singly
	blockdev.BoundBelow
	dev    *blockdev.TestDevice
	info   blockdev.Info
	head   []byte  // the metadata
	chunks []int64 // where each chunk of its data is on the device
	learn  func(at int64)
}

// array assembles one of n members over a device, of which the last is the largest. n 0: there is none.
func array(dev *blockdev.TestDevice, n int) (blockdev.Device, error) {
	if n == 0 {
		return dev, nil
	}
	a := mdtest.Array{Set: 5, Minor: 2, Chunk: arrayChunk / 512, Features: 1 << 12, Layout: 2, Disks: n, Data: arrayChunk / 512}
	all := int64(dev.Info().Size()) / arrayChunk
	var members []md.Member
	var views []*view
	for role := range n {
		mine := all / int64(n+1)
		if role == n-1 {
			mine = all - mine*int64(n-1)
		}
		v := &view{BoundBelow: blockdev.BoundBy(dev), dev: dev, info: dev.Info(), head: make([]byte, arrayChunk), chunks: make([]int64, mine)}
		v.Singly = blockdev.OneByOne(v.Do)
		v.info.Name = fmt.Sprint("member", role)
		v.info.Blocks = blockdev.Blocks((mine + 1) * arrayChunk / int64(v.info.BlockSize))
		if err := a.Write(head(v.head), int64(v.info.Size()), role); err != nil {
			return nil, err
		}
		members, views = append(members, md.Member{Name: v.info.Name, Dev: v}), append(views, v)
	}
	d, err := md.Open(members)
	if err != nil {
		return nil, err
	}
	if d.Info().Size() != dev.Info().Size() {
		return nil, fmt.Errorf("an array of %d bytes over a device of %d", d.Info().Size(), dev.Info().Size())
	}
	// Where the array has each of its chunks the array itself says.
	for i := range all {
		for _, v := range views {
			v.learn = func(at int64) { v.chunks[at/arrayChunk] = i * arrayChunk }
		}
		if err := d.Discard(blockdev.Bytes(i*arrayChunk), blockdev.Bytes(dev.Info().BlockSize)); err != nil {
			return nil, err
		}
	}
	for _, v := range views {
		v.learn = nil
	}
	return d, nil
}

// head is memory that mdtest writes metadata to.
type head []byte

func (h head) WriteAt(b []byte, off int64) (int, error) {
	if off+int64(len(b)) > int64(len(h)) {
		return 0, errors.New("metadata behind the data's beginning")
	}
	return copy(h[off:], b), nil
}

func (v *view) Info() blockdev.Info { return v.info }
func (v *view) Close() error        { return nil }
func (v *view) Alloc(n int, use ...blockdev.Use) (blockdev.Buffer, error) {
	return v.dev.Alloc(n, use...)
}

// Do carries out each request as those of its chunks. See blockdev.Device.
func (v *view) Do(reqs ...*blockdev.Request) (first error) {
	var parts, of []*blockdev.Request
	for _, r := range reqs {
		if r.Err = r.Check(v.info); r.Err != nil {
			continue
		}
		switch {
		case v.learn != nil && r.Op == blockdev.OpDiscard:
			v.learn(int64(r.Off) - arrayChunk)
			continue
		case r.Op != blockdev.OpFlush && r.Off < arrayChunk:
			if r.Op != blockdev.OpRead || int64(r.Off+r.Length()) > arrayChunk {
				r.Err = r.Fail(v.info, errors.New("the metadata are only read"))
				continue
			}
			at := v.head[r.Off:]
			for _, s := range r.Bufs {
				at = at[copy(s.Bytes(), at):]
			}
			continue
		}
		for _, p := range v.split(r) {
			parts, of = append(parts, p), append(of, r)
		}
	}
	if len(parts) > 0 {
		_ = v.dev.Do(parts...) // each has its error
	}
	for i, p := range parts {
		if p.Err != nil && of[i].Err == nil {
			of[i].Err = v.own(of[i], p)
		}
	}
	for _, r := range reqs {
		if first == nil || r.Err != nil && errors.Is(first, blockdev.ErrNoSpace) && !errors.Is(r.Err, blockdev.ErrNoSpace) {
			first = r.Err
		}
	}
	return first
}

// split is a request as requests of the device.
func (v *view) split(r *blockdev.Request) (parts []*blockdev.Request) {
	if r.Op == blockdev.OpFlush {
		return []*blockdev.Request{{Op: r.Op}}
	}
	bufs := slices.Clone(r.Bufs)
	for off, end := int64(r.Off)-arrayChunk, int64(r.Off+r.Length())-arrayChunk; off < end; {
		n := min(arrayChunk-off%arrayChunk, end-off)
		p := &blockdev.Request{Op: r.Op, Off: blockdev.Bytes(v.chunks[off/arrayChunk] + off%arrayChunk), FUA: r.FUA}
		off += n
		if len(bufs) == 0 {
			p.Len = blockdev.Bytes(n)
		}
		for n > 0 && len(bufs) > 0 {
			s := &bufs[0]
			k := min(int(n), s.N)
			p.Bufs = append(p.Bufs, blockdev.Slice{Buf: s.Buf, Off: s.Off, N: k})
			n, s.Off, s.N = n-int64(k), s.Off+k, s.N-k
			if s.N == 0 {
				bufs = bufs[1:]
			}
		}
		parts = append(parts, p)
	}
	return parts
}

// own is an error of the device as the member's.
func (v *view) own(r, p *blockdev.Request) error {
	var e *blockdev.Error
	if !errors.As(p.Err, &e) || r.Op == blockdev.OpFlush {
		return p.Err
	}
	mine := *e
	for i, at := range v.chunks {
		if off := int64(e.Off) - at; off >= 0 && off < arrayChunk {
			mine.Off = blockdev.Bytes(int64(i+1)*arrayChunk + off)
			mine.LBA = blockdev.LBA(mine.Off / v.info.BlockSize)
		}
	}
	return &mine
}
