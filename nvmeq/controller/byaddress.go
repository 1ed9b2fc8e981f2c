package controller

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// byAddress is what is known of memory under DMA, by the controller's addresses of it. Commands read it without a lock: who changes it puts a changed copy in its place.
type byAddress[T any] struct {
	mu  sync.Mutex // held while it is changed
	all atomic.Pointer[[]ranged[T]]
}

// ranged is what is known of a range.
type ranged[T any] struct {
	first, end nvme.IOVA
	of         T
}

func byFirst[T any](x ranged[T], at nvme.IOVA) int { return cmp.Compare(x.first, at) }

func (b *byAddress[T]) ranges() []ranged[T] {
	if p := b.all.Load(); p != nil {
		return *p
	}
	return nil
}

// add notes what is known of the memory of d.
func (b *byAddress[T]) add(d *DMA, of T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := slices.Clone(b.ranges())
	i, _ := slices.BinarySearchFunc(all, d.IOVA, byFirst[T])
	all = slices.Insert(all, i, ranged[T]{d.IOVA, d.IOVA + nvme.IOVA(d.Size), of})
	b.all.Store(&all)
}

// remove forgets it.
func (b *byAddress[T]) remove(d *DMA) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(b.ranges()), func(x ranged[T]) bool { return x.first == d.IOVA })
	b.all.Store(&all)
}

// at is what is known of the memory at an address, nil for nothing.
func (b *byAddress[T]) at(a nvme.IOVA) *T {
	all := b.ranges()
	i, found := slices.BinarySearchFunc(all, a, byFirst[T]) // the last that begins at or before the address
	if !found {
		i--
	}
	if i < 0 || a >= all[i].end {
		return nil
	}
	return &all[i].of
}
