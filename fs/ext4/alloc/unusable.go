package alloc

import (
	"sync/atomic"
	"time"
)

// A group whose bitmap cannot be read, or is damaged, has nothing to give, but the others have. So where the volume's owner lets them,
// searches pass over it, as the kernel's do. What cannot be read now may be read later; what is damaged stays so until e2fsck has seen it.

// lookAgain is for how long a bitmap that could not be used is not asked for again as long as other groups have something: a medium may
// take seconds to say that it cannot read.
const lookAgain = 5 * time.Second

// unusable is a bitmap that could not be used.
type unusable struct {
	err   error
	until time.Time // when it is looked at again
	n     uint64    // how many had been passed over, with it
}

// PassOver has f decide what follows when a search meets a bitmap that cannot be read or is damaged: if it returns true the search goes on
// in other groups. again says that this bitmap was passed over before. f is called under a handle and a group's lock, and must not wait. Without
// PassOver the search ends with the error.
func (a *Allocator) PassOver(f func(err error, again bool) bool) { a.passOver.Store(&f) }

// now says why a bitmap is not asked for at present; nil: it may be.
func (u *unusable) now() error {
	if u == nil || time.Now().After(u.until) {
		return nil
	}
	return u.err
}

// passes says whether a search goes on in other groups after err, with which it could not have a bitmap.
func (a *Allocator) passes(u *atomic.Pointer[unusable], err error) bool {
	f := a.passOver.Load()
	if f == nil || !(*f)(err, u.Load() != nil) {
		return false
	}
	u.Store(&unusable{err, time.Now().Add(lookAgain), a.passed.Add(1)})
	return true
}

// noBlocks and noInodes are where a group's bitmaps are that could not be used.
func noBlocks(g *group) *atomic.Pointer[unusable] { return &g.noBlocks }
func noInodes(g *group) *atomic.Pointer[unusable] { return &g.noInodes }

// looksAgain says whether a search that has found nothing is made once more: where it has left out bitmaps that others could not use, the
// last of them the seen-th. They may be readable by now, so they are asked for again.
func (a *Allocator) looksAgain(of func(*group) *atomic.Pointer[unusable], seen uint64) bool {
	again := false
	for i := range a.groups {
		p := of(&a.groups[i])
		if u := p.Load(); u != nil && u.n <= seen {
			again = p.CompareAndSwap(u, &unusable{err: u.err, n: u.n}) || again
		}
	}
	return again
}

// passedOver is the error of a search that has found nothing: why a bitmap was passed over that might have had something, else none.
func (a *Allocator) passedOver(of func(*group) *atomic.Pointer[unusable], none error) error {
	for i := range a.groups {
		if err := of(&a.groups[i]).Load().now(); err != nil {
			return err
		}
	}
	return none
}
