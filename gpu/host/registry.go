package host

import (
	"cmp"
	"fmt"
	"os"
	"slices"

	"github.com/lanefs/lanefs/gpu"
)

// The live memories, by address. On a GPU a copy to a wrong address is an error; here it would kill the process, so
// copies look their addresses up.

func byAddr(m *memory, a gpu.Addr) int { return cmp.Compare(m.Addr(), a) }

func (r *Runtime) add(m *memory) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return fmt.Errorf("host runtime: %w", os.ErrClosed)
	}
	i, _ := slices.BinarySearchFunc(r.memories, m.Addr(), byAddr)
	r.memories = slices.Insert(r.memories, i, m)
	return nil
}

func (r *Runtime) remove(m *memory) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, _ := slices.BinarySearchFunc(r.memories, m.Addr(), byAddr)
	for ; i < len(r.memories) && r.memories[i].Addr() == m.Addr(); i++ { // registered bytes may begin where another memory does
		if r.memories[i] == m {
			r.memories = slices.Delete(r.memories, i, i+1)
			return
		}
	}
}

// bytesLocked is the n bytes at a, which lie inside one live memory. mu is held until the bytes have been used.
func (r *Runtime) bytesLocked(a gpu.Addr, n int64) ([]byte, error) {
	i, found := slices.BinarySearchFunc(r.memories, a, byAddr)
	if !found {
		i--
	}
	// Registered bytes may lie inside another memory: look at those that begin before, nearest first.
	for ; i >= 0; i-- {
		b := r.memories[i].Host()
		if off := uint64(a - r.memories[i].Addr()); n >= 0 && off <= uint64(len(b)) && uint64(n) <= uint64(len(b))-off {
			return b[off:][:n], nil
		}
	}
	return nil, fmt.Errorf("host runtime: %d bytes at address %#x are not inside any memory of this runtime", n, uint64(a))
}
