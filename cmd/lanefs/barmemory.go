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

// vram is a PCI function whose BAR plays a GPU's memory for the host runtime: in the lab, QEMU's ivshmem.
type vram struct {
	dev    *vfio.Device
	export gpu.Export
}

// openVRAM gives nil where none is asked for.
func openVRAM(cfg *mountConfig, log *slog.Logger) (*vram, error) {
	if cfg.VRAM == "" {
		return nil, nil
	}
	bar, err := mountopt.ParseBAR(cfg.VRAM)
	if err != nil {
		return nil, err
	}
	v := &vram{export: gpu.Export{FD: -1}}
	if v.dev, err = vfio.Open(bar.Function, vfio.Options{Backend: vfio.Backend(cfg.VFIO), BAR: bar.Index, Log: log}); err != nil {
		return nil, fmt.Errorf("device memory: %w", err)
	}
	n := int64(len(v.dev.BAR()))
	e, err := v.dev.Export(bar.Index, 0, n)
	switch {
	case err == nil:
		v.export = e
	case v.dev.Backend() == vfio.Type1:
		// Type1 reaches the BAR through its address in this process, and needs no DMA-BUF.
		v.export = gpu.Export{FD: -1, Size: n, Kind: gpu.ExportDMABUF}
	default:
		return nil, errors.Join(fmt.Errorf("device memory: %w", err), v.dev.Close())
	}
	return v, nil
}

func (v *vram) bank() *host.Bank {
	if v == nil {
		return nil
	}
	return &host.Bank{Name: v.dev.Name(), Bytes: v.dev.BAR(), DMABUF: v.export, Vouch: v.dev.Reachable}
}

func (v *vram) close() error {
	if v == nil {
		return nil
	}
	if v.export.FD >= 0 {
		unix.Close(v.export.FD)
	}
	return v.dev.Close()
}
