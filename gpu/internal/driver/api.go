package driver

import (
	"fmt"

	"github.com/ebitengine/purego"

	"github.com/lanefs/lanefs/gpu/calls"
	"github.com/lanefs/lanefs/gpu/internal/dynlib"
)

// Call is one function of a vendor's library.
type Call struct {
	Name string // as the vendor calls it, for errors
	addr uintptr
}

// Have says whether the library has the function.
func (c *Call) Have() bool { return c.addr != 0 }

// Required is the symbol to bind c to.
func (c *Call) Required(name string) dynlib.Symbol { return c.Optional(name, "", "") }

// Optional is the symbol to bind c to if the library has it; since is the version that brought it, without says what is
// done without it.
func (c *Call) Optional(name, since, without string) dynlib.Symbol {
	c.Name = name
	return dynlib.Symbol{Name: name, Addr: &c.addr, Since: since, For: without}
}

// API is a vendor's library, as far as both vendors have the same calls. The arguments are CUDA's, and HIP's.
type API struct {
	Name string // "cuda"

	SetCurrent Call // (Config.Current)

	HostAlloc, HostFree, HostRegister, HostUnregister, HostAddress Call
	MemInfo                                                        Call
	Reserve, FreeAddress, Create, Release, Map, Unmap, SetAccess   Call // VMM: not all libraries have them
	Export, Import                                                 Call // likewise
	ModuleLoad, ModuleUnload, ModuleFunction                       Call
	StreamCreate, StreamDestroy, StreamQuery, Launch, Copy, SetD8  Call
	StreamPriority, PriorityRange, Occupancy                       Call
	Synchronize                                                    Call
	WriteValue, Copy2D                                             Call    // not all libraries have them
	CopyKind                                                       uintptr // what Copy takes between the size and the stream; 0: nothing
	OpenIPC, CloseIPC, AddressRange                                Call    // legacy IPC: not all libraries have it
	ImportByAddress                                                bool    // Import takes the address of the descriptor
	Describe                                                       func(code int32) (name, text string)
}

// Results that both vendors number alike: CUresult and hipError_t.
const (
	Success     = 0
	outOfMemory = 2
	notReady    = 600
)

// Raw calls a function that needs no current device.
//
//go:uintptrescapes
func Raw(c Call, args ...uintptr) int32 {
	calls.Begins(c.Name)
	code, _, _ := purego.SyscallN(c.addr, args...)
	return int32(code)
}

// Early is Raw with the result as an error: for what is called before there is a Device.
//
//go:uintptrescapes
func (a *API) Early(c Call, args ...uintptr) error {
	return a.Check(c.Name, Raw(c, args...))
}

// RawPointer is Raw for a function that returns a pointer.
//
//go:uintptrescapes
func RawPointer(c Call, args ...uintptr) uintptr {
	calls.Begins(c.Name)
	p, _, _ := purego.SyscallN(c.addr, args...)
	return p
}

// Error is a failed call of a vendor's library.
type Error struct {
	Call string // "cuMemCreate"
	Code int    // CUresult, hipError_t or hsa_status_t
	Name string // "CUDA_ERROR_OUT_OF_MEMORY"
	Text string // the library's words
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %s (%s, %d)", e.Call, e.Text, e.Name, e.Code)
	if e.lost() {
		s += "; the GPU is lost to this process: mount again, or use --gpu host"
	}
	return s
}

func (e *Error) lost() bool { return isLost(e.Code) }

// isLost says whether nothing works on the device any more in this process: an uncorrectable memory error, a kernel that was
// killed, or one that faulted, with MPS also another program's; or MPS is gone (cuda.h, from CUDA_ERROR_MPS_CONNECTION_FAILED on).
func isLost(code int) bool {
	switch {
	case code == 214, code == 700, code == 702, code == 710, code >= 714 && code <= 719, code == 805, code == 806, code == 810:
		return true
	}
	return false
}

// Check makes an error of a result.
func (a *API) Check(call string, code int32) error {
	if code == Success {
		return nil
	}
	name, text := a.Describe(code)
	return &Error{Call: call, Code: int(code), Name: name, Text: text}
}
