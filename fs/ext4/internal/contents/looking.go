package contents

import (
	"fmt"
	"sync"

	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// looking is one look at where a range of blocks lies, and the transfers that come of it. Its memory is used again, for every READ
// and WRITE takes this road; MapRange is the same for a function.
//
//	w := look(i, from, to)
//	defer w.done()
//	for w.next() { ... w.x ... }
//	w.err
type looking struct {
	x    extent.Extent // found by next
	err  error
	list ioList

	from, to uint32 // what is left
	tree     volume.Tree
	extents  *extent.Tree         // the same, if that is what it is
	known    [found]extent.Extent // extents and holes that were found. Those of a call are often in few
	oldest   int                  // of known
	memory   volume.TreeMemory
	nodes    heldNodes
}

// found is how many extents are kept: more than are looked through in less time than one is found in.
const found = 16

var lookings = sync.Pool{New: func() any { return new(looking) }}

// look begins at logical block from, and ends before to. Mu is held until done.
func look(i *volume.Inode, from, to uint32) *looking {
	w := lookings.Get().(*looking)
	w.nodes.i = i
	w.tree = i.TreeAt(&w.memory, &w.nodes)
	w.extents, _ = w.tree.(*extent.Tree)
	w.at(from, to)
	return w
}

// at begins anew, elsewhere in the same file.
func (w *looking) at(from, to uint32) {
	w.from, w.to, w.err = from, to, nil
	if from > to || to > extent.MaxBlock {
		w.err = fmt.Errorf("inode %d: %w", w.nodes.i.Ino(), extent.ErrRange)
	}
}

// next finds the next extent or hole.
func (w *looking) next() bool {
	if w.err != nil || w.from >= w.to {
		return false
	}
	if w.extents == nil {
		w.x, w.err = w.tree.Map(w.from, w.to-w.from)
	} else if w.x, w.err = w.find(w.from); w.err == nil {
		w.x = w.x.Part(w.from, w.to-w.from)
	}
	w.from = w.x.End()
	return w.err == nil
}

// find is the extent or hole at logical block l.
func (w *looking) find(l uint32) (extent.Extent, error) {
	for k := range w.known {
		if x := &w.known[k]; l-x.Lblk < x.Len { // no block before Lblk: it would be far behind
			return *x, nil
		}
	}
	x, err := w.extents.Find(l)
	if err == nil {
		w.known[w.oldest] = x
		w.oldest = (w.oldest + 1) % found
	}
	return x, err
}

// done gives the memory back.
func (w *looking) done() {
	w.nodes.release()
	*w = looking{memory: w.memory}
	w.memory.Forget()
	lookings.Put(w)
}
