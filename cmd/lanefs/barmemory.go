package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/gpu/vfio"
	"github.com/lanefs/lanefs/gpu/vfio/pci"
)

// vram is a PCI function whose BAR plays a GPU's memory for the host runtime: in the lab, QEMU's ivshmem.
type vram struct {
	dev    *vfio.Device
	export gpu.Export
}

// vramBAR is the BAR unless one is named: where ivshmem, and most GPUs' first large BAR after their registers, have it.
const vramBAR = 2

// parseVRAM reads ADDR or ADDR/BAR.
func parseVRAM(v string) (addr string, bar int, err error) {
	addr, index, given := strings.Cut(v, "/")
	bar = vramBAR
	if given {
		if bar, err = strconv.Atoi(index); err != nil || bar < 0 || bar > 5 {
			return "", 0, fmt.Errorf("%q is no BAR: want a number from 0 to 5", index)
		}
	}
	a, err := pci.ParseAddress(addr)
	return string(a), bar, err
}

func checkVRAM(v string) error {
	if v == "" {
		return nil
	}
	_, _, err := parseVRAM(v)
	return err
}

func checkVFIO(v string) error {
	if b := vfio.Backend(v); b != vfio.IOMMUFD && b != vfio.Type1 {
		return fmt.Errorf("want %s or %s", vfio.IOMMUFD, vfio.Type1)
	}
	return nil
}

// openVRAM gives nil where none is asked for.
func openVRAM(cfg *mountConfig, log *slog.Logger) (*vram, error) {
	if cfg.VRAM == "" {
		return nil, nil
	}
	addr, bar, err := parseVRAM(cfg.VRAM)
	if err != nil {
		return nil, err
	}
	v := &vram{export: gpu.Export{FD: -1}}
	if v.dev, err = vfio.Open(addr, vfio.Options{Backend: vfio.Backend(cfg.VFIO), BAR: bar, Log: log}); err != nil {
		return nil, fmt.Errorf("device memory: %w", err)
	}
	n := int64(len(v.dev.BAR()))
	e, err := v.dev.Export(bar, 0, n)
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
