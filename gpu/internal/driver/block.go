package driver

import (
	"fmt"
	"os"
	"sync"

	"github.com/lanefs/lanefs/gpu"
)

// Block is memory of a fixed size, in whatever place: what Adopt makes a gpu.Memory of.
type Block struct {
	Kind  gpu.MemKind
	Reach gpu.Reach
	Addr  gpu.Addr
	Size  int64
	Host  []byte // nil: the CPU has no view
	Free  func() error
	// Export hands out a descriptor; nil where that cannot be done.
	Export func(gpu.ExportKind) (gpu.Export, error)

	start uintptr // the CPU's address of host memory
}

// block is a gpu.Memory.
type block struct {
	d      *Device
	b      Block
	mu     sync.Mutex
	closed bool // protected by mu
}

// Adopt counts b among the open memories; closing it calls its Free.
func (d *Device) Adopt(b *Block) gpu.Memory {
	d.memories.Add(1)
	return &block{d: d, b: *b}
}

func (m *block) Kind() gpu.MemKind { return m.b.Kind }
func (m *block) Size() int64       { return m.b.Size }
func (m *block) Addr() gpu.Addr    { return m.b.Addr }
func (m *block) Host() []byte      { return m.b.Host }
func (m *block) Reach() gpu.Reach  { return m.b.Reach }

// Export implements gpu.Memory.
func (m *block) Export(want gpu.ExportKind) (gpu.Export, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return gpu.Export{}, fmt.Errorf("%s: export: %w", m.d.prefix, os.ErrClosed)
	}
	if m.b.Export == nil {
		return gpu.Export{}, fmt.Errorf("%s: %s memory cannot be exported: allocate a device kind", m.d.prefix, m.b.Kind)
	}
	e, err := m.b.Export(want)
	if err != nil {
		return gpu.Export{}, fmt.Errorf("%s: export %d bytes of %s memory: %w", m.d.prefix, m.b.Size, m.b.Kind, err)
	}
	return e, nil
}

// Close implements gpu.Memory. It waits for kernels that run. A second Close is an error: by then the address may be
// another's.
func (m *block) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("%s: %s memory: %w", m.d.prefix, m.b.Kind, os.ErrClosed)
	}
	m.closed = true
	m.b.Host = nil
	m.d.memories.Add(-1)
	if err := m.b.Free(); err != nil {
		return fmt.Errorf("%s: free %s memory: %w", m.d.prefix, m.b.Kind, err)
	}
	return nil
}
