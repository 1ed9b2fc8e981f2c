package namespace

import (
	"runtime/trace"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/internal/pool"
	"github.com/lanefs/lanefs/blockdev/latency"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// lone carries out one plain read or write, of one run of memory and one command, by Engine.Lone, and says whether it has. All others, and what fails,
// go the long way, which also says why a request is refused. It is short, since what a short read costs beside pread is the code that it goes through: a CPU that slept while the
// device worked fetches it anew.
func (d *Namespace) lone(r *blockdev.Request) bool {
	var op nvme.Opcode
	kind := timeRead
	switch {
	case r.Op == blockdev.OpRead:
		op = nvme.IORead
	case r.Op == blockdev.OpWrite && !r.FUA && !d.info.ReadOnly:
		op, kind = nvme.IOWrite, timeWrite
	default:
		return false
	}
	if len(r.Bufs) != 1 || d.closed.Load() || d.mirrors.Load() || trace.IsEnabled() {
		return false
	}
	s, n := &r.Bufs[0], blockdev.Bytes(r.Bufs[0].N)
	b, ok := s.Buf.(*pool.Buffer)
	if !ok || !d.pool.Owns(b) || n <= 0 || n > d.lones.most || r.Off < 0 || r.Off > d.lones.end-n || (r.Off|n)&(d.limits.blockSize-1) != 0 ||
		s.Off < 0 || s.Off&3 != 0 || s.Off > b.Len()-s.N {
		return false
	}
	var begin, end latency.Clock
	device, lanes := d.times.device.StartBy(&begin, kind), d.times.lanes.StartBy(&begin, kind)
	if !d.eng.Lone(op, d.info.NSID, uint64(r.Off)>>d.lones.shift, uint32(n>>d.lones.shift), uint32(n), d.iova(*s)) {
		return false
	}
	device.EndBy(&end)
	lanes.EndBy(&end)
	d.times.controller.Add(kind, end.Since(&begin))
	r.Err = nil
	d.yields.ended(n, &end)
	return true
}

// lones is what lone needs to know of the namespace. The zero value takes nothing.
type lones struct {
	most  blockdev.Bytes // of a command
	end   blockdev.Bytes // of the device
	shift int            // log2 of the block size
}
