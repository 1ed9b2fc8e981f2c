package lanefs

import (
	"fmt"
	"os"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// File is a file for transfers of rings. The flags with which it was opened say which transfers are allowed.
type File struct{ object }

// Open makes f known to rings. f may be closed afterwards.
func (s *Session) Open(f *os.File) (*File, error) {
	var r wire.OpenReply
	if _, err := s.call(wire.TOpen, &wire.Open{}, &r, 0, f); err != nil {
		return nil, fmt.Errorf("%q: %w", f.Name(), err)
	}
	return &File{object{s: s, handle: r.Handle}}, nil
}

// Close closes the file in the daemon, after requests that name it and were started before have been carried out.
func (f *File) Close() error { return f.release() }
