package lanefs

import (
	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/gpu"
)

// Memory is memory of the program that the daemon has imported, for transfers of rings.
type Memory struct{ object }

// Register makes the daemon import memory: a memfd, or, with a GPU, a handle of its virtual memory. The caller still has to close the
// descriptor.
func (s *Session) Register(e gpu.Export) (*Memory, error) {
	var r wire.RegisterReply
	if _, err := s.callWith(wire.TRegister, &wire.Register{Kind: uint32(e.Kind), FDOff: uint64(e.Offset), Size: uint64(e.Size)}, &r, 0, e.FD); err != nil {
		return nil, err
	}
	return &Memory{object{s: s, handle: r.Handle}}, nil
}

// Close ends the import in the daemon, after requests that name the memory have ended.
func (m *Memory) Close() error { return m.release() }
