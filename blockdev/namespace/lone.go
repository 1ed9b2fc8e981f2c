package namespace

import (
	"runtime/trace"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/internal/pool"
	"github.com/lanefs/lanefs/blockdev/latency"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// lone carries out one plain read or write, of one run of memory and one command, or a flush, by Engine.Lone, and says whether it has. All others, and what fails,
// go the long way, which also says why a request is refused. It is short, since what a short read costs beside pread is the code that it goes through: a CPU that slept while the
// device worked fetches it anew.
func (d *Namespace) lone(r *blockdev.Request) bool {
	cmd := controller.LoneCommand{NSID: d.info.NSID}
	kind := timeRead
	switch {
	case r.Op == blockdev.OpRead:
		cmd.Op = nvme.IORead
	case r.Op == blockdev.OpWrite && !d.info.ReadOnly:
		cmd.Op, cmd.FUA, kind = nvme.IOWrite, r.FUA, timeWrite
	case r.Op == blockdev.OpFlush && d.info.VolatileCache:
		cmd.Op, kind = nvme.IOFlush, timeFlush
	default:
		return false
	}
	if d.closed.Load() || d.mirrors.Load() || trace.IsEnabled() || kind != timeFlush && !d.run(r, &cmd) {
		return false
	}
	begin := latency.ReadClock()
	if !d.eng.Lone(cmd) {
		return false
	}
	end := latency.ReadClock()
	d.times.lone.Add(kind, end.Since(&begin))
	r.Err = nil
	d.yields.ended(blockdev.Bytes(cmd.Bytes), &end)
	return true
}

// run puts the one run of a request's memory, and its blocks, into cmd, and says whether they are such as one command takes.
func (d *Namespace) run(r *blockdev.Request, cmd *controller.LoneCommand) bool {
	if len(r.Bufs) != 1 {
		return false
	}
	s, n := &r.Bufs[0], blockdev.Bytes(r.Bufs[0].N)
	b, ok := s.Buf.(*pool.Buffer)
	if !ok || !d.pool.Owns(b) || n <= 0 || n > d.lones.most || r.Off < 0 || r.Off > d.lones.end-n || (r.Off|n)&(d.limits.blockSize-1) != 0 ||
		s.Off < 0 || s.Off&3 != 0 || s.Off > b.Len()-s.N {
		return false
	}
	cmd.SLBA, cmd.Blocks, cmd.Bytes, cmd.Data = uint64(r.Off)>>d.lones.shift, uint32(n>>d.lones.shift), uint32(n), d.iova(*s)
	return true
}

// lones is what lone needs to know of the namespace. The zero value takes nothing.
type lones struct {
	most  blockdev.Bytes // of a command
	end   blockdev.Bytes // of the device
	shift int            // log2 of the block size
}
