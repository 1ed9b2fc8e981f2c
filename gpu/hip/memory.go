package hip

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/internal/driver"
	"github.com/lanefs/lanefs/gpu/internal/dynlib"
	"github.com/lanefs/lanefs/gpu/internal/span"
)

const devicePage = 4096

// force is the variable without which HSA has no fine-grained device memory on Radeons [XIO].
const force = "HSA_FORCE_FINE_GRAIN_PCIE"

// needsForce says that force should be set, where it should.
func needsForce(arch string) string {
	if !isRadeon(arch) || os.Getenv(force) == "1" {
		return ""
	}
	return fmt.Sprintf("%s, a Radeon, has fine-grained device memory only with %s=1 in the environment of lanefs", arch, force)
}

// hostFlags are hipHostMalloc's. On MI300 host memory should be uncached [XIO]; hipHostMallocUncached came with ROCm 7.
func hostFlags(kind gpu.MemKind, arch string, version int32) uintptr {
	switch {
	case kind == gpu.HostDefault:
		return 0
	case kind == gpu.HostMapped && version >= 70000000 && strings.HasPrefix(arch, "gfx94"):
		return driver.HostPortable | driver.HostMapped | hostUncached
	case kind == gpu.HostCoherent:
		return driver.HostPortable | driver.HostMapped | hostCoherent
	}
	return driver.HostPortable | driver.HostMapped
}

// Alloc implements gpu.Runtime.
func (r *Runtime) Alloc(kind gpu.MemKind, n int64) (gpu.Memory, error) {
	if !kind.Device() || kind == gpu.DeviceVMM {
		return r.Device.Alloc(kind, n)
	}
	if err := r.CheckAlloc(kind, n); err != nil {
		return nil, err
	}
	length := span.RoundUp(n, devicePage)
	var a uintptr
	var code int32
	var err error
	call := r.lib.extMalloc
	switch kind {
	case gpu.DevicePlain:
		call = r.lib.malloc
		code, err = r.Status(call, uintptr(unsafe.Pointer(&a)), uintptr(length))
	case gpu.DeviceFine:
		code, err = r.Status(call, uintptr(unsafe.Pointer(&a)), uintptr(length), deviceFine)
	case gpu.DeviceUncached:
		code, err = r.Status(call, uintptr(unsafe.Pointer(&a)), uintptr(length), deviceUncached)
	default:
		code, err = r.Status(call, uintptr(unsafe.Pointer(&a)), uintptr(length), deviceDefault)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("hip runtime: %w", err)
	case code == hipErrorOutOfMemory:
		return nil, r.OutOfMemory(kind, length)
	case code != driver.Success:
		err := fmt.Errorf("hip runtime: %d bytes of %s memory: %w", length, kind, r.lib.Check(call.Name, code))
		if why := needsForce(r.Facts().Arch); why != "" && kind != gpu.DevicePlain {
			err = fmt.Errorf("%w (%s)", err, why)
		}
		return nil, err
	}
	free := func() error { return r.Do(r.lib.free, a) }
	m := &driver.Block{Kind: kind, Reach: r.DeviceReach(), Addr: gpu.Addr(a), Size: n, Free: free}
	if err := r.describe(m, length); err != nil {
		return nil, errors.Join(fmt.Errorf("hip runtime: %d bytes of %s memory: %w", length, kind, err), free())
	}
	m.Export = func(want gpu.ExportKind) (gpu.Export, error) { return r.export(m.Addr, m.Size, want) }
	return r.Adopt(m), nil
}

// describe completes m by what HSA knows of it.
func (r *Runtime) describe(m *driver.Block, length int64) error {
	p, err := r.lib.pointer(m.Addr)
	if err != nil {
		return err
	}
	if p.AgentBase != uintptr(m.Addr) || p.Bytes < uint64(length) || m.Addr%devicePage != 0 {
		return fmt.Errorf("%s: the allocation is %d bytes at %#x, HIP said %d at %#x, and pages are %d", r.lib.pointerInfo.Name,
			p.Bytes, p.AgentBase, length, uint64(m.Addr), devicePage)
	}
	if r.Facts().LargeBAR && p.HostBase != 0 {
		m.Host = dynlib.Bytes(p.HostBase, m.Size)
	}
	return nil
}
