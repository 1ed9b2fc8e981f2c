package exchange

import (
	"fmt"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// goFuse has go-fuse's ProtocolServer answer.
type goFuse struct{ server *fuse.ProtocolServer }

// goFuseData is goFuse for a file system that is Data, too.
type goFuseData struct {
	*goFuse
	Data
}

// GoFuse makes a handler of a file system that a fuse.Server serves on /dev/fuse at the same time. The options are those that the
// server was made with, init is its KernelSettings: the request is answered a second time, which only go-fuse's own settings
// hear of, and not the file system.
func GoFuse(fs fuse.RawFileSystem, opt *fuse.MountOptions, init *fuse.InitIn) (Handler, error) {
	g := &goFuse{fuse.NewProtocolServer(fs, opt)}
	in := unsafe.Slice((*byte)(unsafe.Pointer(init)), unsafe.Sizeof(*init))
	out := make([]byte, unsafe.Sizeof(fuse.OutHeader{})+unsafe.Sizeof(fuse.InitOut{}))
	if _, status := g.server.HandleRequest([][]byte{in}, [][]byte{out}); !status.Ok() {
		return nil, fmt.Errorf("go-fuse refuses the kernel's INIT: %v", status)
	}
	if h := (*fuse.OutHeader)(unsafe.Pointer(&out[0])); h.Status != 0 {
		return nil, fmt.Errorf("go-fuse refuses the kernel's INIT: %v", fuse.Status(-h.Status))
	}
	if d, ok := fs.(Data); ok {
		return goFuseData{g, d}, nil
	}
	return g, nil
}

func (g *goFuse) Handle(in, out [][]byte) int {
	n, status := g.server.HandleRequest(in, out)
	if !status.Ok() {
		return 0
	}
	return n
}
