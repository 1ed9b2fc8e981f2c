package softctl

import (
	"crypto/sha256"
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// namespace is a range of an image.
type namespace struct {
	id     uint32
	medium media.Medium
	image  *media.Image
	base   int64 // bytes into the image
	blocks uint64
	shift  int  // log2 of the block size
	whole  bool // the namespace is all of its image
	nguid  [16]byte
	uuid   [16]byte

	lastFull atomic.Pointer[time.Time] // when the image last had no room; nil: never
}

// makeNamespaces cuts the first image into Options.Namespaces parts, the last of which takes what does not divide, and
// appends one namespace for each further image.
func (c *Controller) makeNamespaces() ([]*namespace, error) {
	bs := int64(c.opt.BlockSize)
	if c.opt.Serial == "" {
		dev, ino := c.files[0].ID()
		id := sha256.Sum256(fmt.Appendf(nil, "%d:%d", dev, ino))
		c.opt.Serial = fmt.Sprintf("LANEFS%X", id[:6])
	}
	var r []*namespace
	add := func(m *media.Image, base, size int64) (err error) {
		ns := &namespace{id: uint32(len(r) + 1), medium: m, image: m, base: base, blocks: uint64(size / bs),
			shift: bits.TrailingZeros(uint(bs)), whole: size == m.Size()}
		if c.opt.Recorder != nil {
			if ns.medium, err = c.opt.Recorder.Follow(m, c.opt.BlockSize); err != nil {
				return err
			}
		}
		id := sha256.Sum256(fmt.Appendf(nil, "%s:%s:%d", c.opt.Model, c.opt.Serial, ns.id))
		copy(ns.nguid[:], id[:16])
		copy(ns.uuid[:], id[16:])
		ns.uuid[6] = ns.uuid[6]&0x0f | 0x80 // version 8: made by a rule of our own
		ns.uuid[8] = ns.uuid[8]&0x3f | 0x80
		r = append(r, ns)
		return nil
	}
	first := c.files[0]
	n := int64(c.opt.Namespaces)
	part := first.Size() / bs / n * bs
	if part == 0 {
		return nil, fmt.Errorf("image %q of %d bytes cannot be cut into %d namespaces of %d-byte blocks", first.Path(), first.Size(), n, bs)
	}
	for i := range n {
		size := part
		if i == n-1 {
			size = first.Size() - part*i
		}
		if err := add(first, part*i, size); err != nil {
			return nil, err
		}
	}
	for _, m := range c.files[1:] {
		if err := add(m, 0, m.Size()); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// namespace finds an NSID: 0, the broadcast value and numbers above NN are not valid ones.
func (c *Controller) namespace(nsid uint32) (*namespace, bool) {
	if nsid == 0 || uint64(nsid) > uint64(len(c.ns)) {
		return nil, false
	}
	return c.ns[nsid-1], true
}

func (n *namespace) size() int64 { return int64(n.blocks) << n.shift }

// used is NUSE in blocks: what the file has allocated, where the namespace is the whole file.
func (n *namespace) used() uint64 {
	if !n.whole {
		return n.blocks
	}
	return min(uint64(n.image.Allocated())>>n.shift, n.blocks)
}

// span checks a range of blocks and gives it in bytes of the image. Nothing in it can overflow.
func (n *namespace) span(slba, blocks uint64) (off, length int64, st Status) {
	if slba > n.blocks || blocks > n.blocks-slba {
		return 0, 0, lbaOutOfRange
	}
	return n.base + int64(slba)<<n.shift, int64(blocks) << n.shift, success
}
