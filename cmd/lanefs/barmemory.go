package main

import (
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/mountopt"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/gpu/vfio"
)

// barMemory is a PCI function whose BAR is the host runtime's device memory: in the lab, QEMU's ivshmem.
type barMemory struct {
	dev    *vfio.Device
	export gpu.Export
}

// openBARMemory gives nil where none is asked for.
func openBARMemory(cfg *mountConfig, log *slog.Logger) (*barMemory, error) {
	if cfg.VRAM == "" {
		return nil, nil
	}
	bar, err := mountopt.ParseBAR(cfg.VRAM)
	if err != nil {
		return nil, err
	}
	b := &barMemory{export: gpu.Export{FD: -1}}
	if b.dev, err = vfio.Open(bar.Function, vfio.Options{Backend: vfio.Backend(cfg.VFIO), BAR: bar.Index, Log: log}); err != nil {
		return nil, fmt.Errorf("device memory: %w", err)
	}
	n := int64(len(b.dev.BAR()))
	e, err := b.dev.Export(bar.Index, 0, n)
	switch {
	case err == nil:
		b.export = e
	case b.dev.Backend() == vfio.Type1:
		// Type1 reaches the BAR through its address in this process, and needs no DMA-BUF.
		b.export = gpu.Export{FD: -1, Size: n, Kind: gpu.ExportDMABUF}
	default:
		return nil, errors.Join(fmt.Errorf("device memory: %w", err), b.dev.Close())
	}
	return b, nil
}

func (b *barMemory) bank() *host.Bank {
	if b == nil {
		return nil
	}
	return &host.Bank{Name: b.dev.Name(), Bytes: b.dev.BAR(), DMABUF: b.export, Check: b.dev.Reachable}
}

func (b *barMemory) close() error {
	if b == nil {
		return nil
	}
	if b.export.FD >= 0 {
		unix.Close(b.export.FD)
	}
	return b.dev.Close()
}
