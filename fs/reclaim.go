package fs

import (
	"errors"
	"time"

	"github.com/lanefs/lanefs/fs/ext4"
)

// A file without names gives its inode and blocks back when the kernel forgets it, which it says in a message of its own that
// nobody waits for: when unlink(2) or close(2) has returned it may be under way. So whoever finds the volume full while there
// are such files waits a moment for them, and for nothing else.

// reclaimPatience bounds that wait. It is long only while somebody keeps such a file open.
const reclaimPatience = 2 * time.Second

// reclaim is do, tried again as often as the volume was full and a file without names was given back since.
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
		for s.nodes.reclaimed.Load() == before && len(waiting) > 0 && time.Now().Before(end) {
			time.Sleep(time.Millisecond)
		}
		if s.nodes.reclaimed.Load() == before {
			s.nodes.giveUp(waiting)
			return err
		}
	}
}

// reclaimed is reclaim for what gives something.
func reclaimed[T any](s *Server, do func() (T, error)) (v T, err error) {
	err = s.reclaim(func() (err error) {
		v, err = do()
		return err
	})
	return v, err
}
