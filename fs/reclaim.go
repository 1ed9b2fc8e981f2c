package fs

import (
	"errors"
	"time"

	"github.com/lanefs/lanefs/fs/ext4"
)

// The inode and the blocks of a file without names are freed when the kernel forgets the file. FORGET is a message of its own, without
// a reply: it may be on its way when unlink(2) or close(2) has returned. So a request that finds the volume full waits for such files, if
// there are any, before it fails.

// reclaimPatience bounds that wait. The whole time passes only if a program has such a file open.
const reclaimPatience = 2 * time.Second

// reclaim calls do, and calls it again as long as the volume was full and a file without names was freed meanwhile.
func (s *Server) reclaim(do func() error) error {
	var end time.Time
	for {
		before := s.nodes.reclaimed.Load()
		err := do()
		if !errors.Is(err, ext4.ErrNoSpace) {
			return err
		}
		if end.IsZero() {
			end = time.Now().Add(s.opt.patience)
		}
		waiting := s.nodes.awaited()
		if len(waiting) > 0 {
			s.device.Load().Waits() // a FORGET is a request, too
		}
		for s.nodes.reclaimed.Load() == before && len(waiting) > 0 && time.Now().Before(end) {
			time.Sleep(time.Millisecond)
		}
		if s.nodes.reclaimed.Load() == before {
			s.nodes.giveUp(waiting)
			return err
		}
	}
}

// reclaimed is reclaim for functions that return a value.
func reclaimed[T any](s *Server, do func() (T, error)) (v T, err error) {
	err = s.reclaim(func() (err error) {
		v, err = do()
		return err
	})
	return v, err
}

// addNameless records that a file whose node is in use has lost its last name, or was created without one.
func (t *nodes) addNameless(n *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.loaded[n.in.Ino()] == n {
		t.nameless[n] = true
	}
}

// awaited returns the files without names that are worth waiting for.
func (t *nodes) awaited() (list []*node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n, worth := range t.nameless {
		if worth {
			list = append(list, n)
		}
	}
	return list
}

// giveUp records that files without names were waited for in vain, because programs have them open.
func (t *nodes) giveUp(list []*node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range list {
		if _, ok := t.nameless[n]; ok && t.loaded[n.in.Ino()] == n {
			t.nameless[n] = false
		}
	}
}
