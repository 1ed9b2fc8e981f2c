package testrig

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// Intercepted is a controller in software whose registers and answers a test changes. Functions that are nil change nothing.
type Intercepted struct {
	*softctl.Controller
	OnRead32    func(off int64, v uint32) uint32
	OnRead64    func(off int64, v uint64) uint64
	OnBAR       func([]byte) []byte
	OnAdminData func(b []byte) // is called with the admin queue's data page after each admin step
	Admin       []byte         // memory of the admin queue: submission queue, completion queue, data
	CCs         []nvme.CC
	Resets      int // function-level resets
}

func (b *Intercepted) Read32(off int64) uint32 {
	v := b.Controller.Read32(off)
	if b.OnRead32 != nil {
		v = b.OnRead32(off, v)
	}
	return v
}

func (b *Intercepted) Read64(off int64) uint64 {
	v := b.Controller.Read64(off)
	if b.OnRead64 != nil {
		v = b.OnRead64(off, v)
	}
	return v
}

func (b *Intercepted) Write32(off int64, v uint32) {
	if off == nvme.RegCC {
		b.CCs = append(b.CCs, nvme.CC(v))
	}
	b.Controller.Write32(off, v)
}

func (b *Intercepted) BAR() []byte {
	if b.OnBAR != nil {
		return b.OnBAR(b.Controller.BAR())
	}
	return b.Controller.BAR()
}

func (b *Intercepted) Map(m gpu.Memory, off, n int64) (nvme.IOVA, error) {
	if b.Admin == nil {
		b.Admin = m.Host() // the admin queue is mapped first: submission, completion, data
	}
	return b.Controller.Map(m, off, n)
}

func (b *Intercepted) Step(sqid uint16) bool {
	did := b.Controller.Step(sqid)
	if sqid == 0 && did && b.OnAdminData != nil {
		b.OnAdminData(b.Admin[8192:])
	}
	return did
}

func (b *Intercepted) Reset() error {
	b.Resets++
	return b.Controller.Reset()
}

// bend opens a Intercepted controller; the test opens nvmeq on it.
func Intercept(t testing.TB, so softctl.Options) (*Intercepted, controller.Config, *softctl.Rules) {
	t.Helper()
	rules := &softctl.Rules{}
	so.Injector = rules
	so.Log = slog.New(slog.DiscardHandler)
	rt := OpenRuntime(t)
	t.Cleanup(func() { require.NoError(t, rt.Close(), "the runtime finds leaks") })
	soft, err := softctl.Open(NewImage(t), Served(t, rt, so))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, soft.Close()) })
	b := &Intercepted{Controller: soft}
	return b, controller.Config{Runtime: rt, Transport: b, Log: slog.New(slog.DiscardHandler), Timeout: 100 * time.Millisecond}, rules
}
