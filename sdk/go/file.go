package lanefs

import (
	"fmt"
	"os"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// File is a file that rings can name. How it was opened says what may be done with it.
type File struct {
	s      *Session
	handle uint32
}

// Open lets rings name f, which may be closed afterwards.
func (s *Session) Open(f *os.File) (*File, error) {
	var r wire.OpenReply
	if _, err := s.call(wire.TOpen, &wire.Open{}, &r, 0, f); err != nil {
		return nil, fmt.Errorf("%q: %w", f.Name(), err)
	}
	return &File{s, r.Handle}, nil
}

// Close has the daemon forget the file, after requests that name it.
func (f *File) Close() error { return f.s.release(f.handle) }
