package lanefs

import (
	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/gpu"
)

// Memory is the program's own, which the daemon has imported.
type Memory struct {
	s      *Session
	handle uint32
}

// Register has the daemon import memory, so that rings can name it: a memfd with the host runtime, a handle of the GPU's
// virtual memory with a GPU. The descriptor stays the caller's.
func (s *Session) Register(e gpu.Export) (*Memory, error) {
	var r wire.RegisterReply
	if _, err := s.callWith(wire.TRegister, &wire.Register{Kind: uint32(e.Kind), FDOff: uint64(e.Offset), Size: uint64(e.Size)}, &r, 0, e.FD); err != nil {
		return nil, err
	}
	return &Memory{s, r.Handle}, nil
}

// Close has the daemon forget the memory, after requests that name it.
func (m *Memory) Close() error { return m.s.release(m.handle) }
