package controller_test

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// TestHostBuffer: a controller gets what it asks for of the host's memory, as far as it may have it, has it after every reset, and nobody touches it meanwhile.
func TestHostBuffer(t *testing.T) {
	const mib = 1 << 20
	for _, tc := range []struct {
		name               string
		wants, least, most int64
		given              int64
		log                string
	}{
		{name: "as asked for", wants: 8 * mib, least: mib, most: 128 * mib, given: 8 * mib},
		{name: "less", wants: 8 * mib, least: mib, most: 3*mib + 5000, given: 3*mib + 4096},
		{name: "too little", wants: 8 * mib, least: 4 * mib, most: 3 * mib, log: "it has a use for 4194304 bytes at least"},
		{name: "none", wants: 8 * mib, least: mib},
		{name: "not asked for", most: 128 * mib},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, cfg, _ := testrig.Intercept(t, softctl.Options{HostBuffer: tc.wants, HostBufferLeast: tc.least})
			var log testrig.LogBuffer
			cfg.HostBuffer, cfg.Log = tc.most, slog.New(slog.NewTextHandler(&log, nil))
			c, err := controller.Open(cfg)
			require.NoError(t, err)
			check := func() {
				t.Helper()
				n, err := b.HostBuffer()
				require.NoError(t, err)
				require.Equal(t, tc.given, n)
				require.Equal(t, tc.given, c.HostBuffer())
			}
			check()
			require.Contains(t, log.String(), tc.log)
			require.Equal(t, tc.log != "", log.Count("goes without") == 1)
			require.NoError(t, c.Reset())
			check()
			require.NoError(t, c.Close())
			n, err := b.HostBuffer()
			require.NoError(t, err, "it was not taken away before the controller was disabled")
			require.Zero(t, n)
		})
	}
}

// TestHostBufferRefused: what a controller does not take, or what there is no memory for, is no reason to go without the controller; an answer that does not come is.
func TestHostBufferRefused(t *testing.T) {
	refusing := softctl.Verdict{Status: softctl.Status(2)} // Invalid Field in Command
	set := uint8(nvme.AdminSetFeatures)
	for name, before := range map[string]int{"at first": 2, "after a reset": 5} { // Number of Queues, Asynchronous Event Configuration; thrice
		t.Run(name, func(t *testing.T) {
			b, cfg, rules := testrig.Intercept(t, softctl.Options{HostBuffer: 1 << 20})
			var log testrig.LogBuffer
			cfg.HostBuffer, cfg.Log = 1<<20, slog.New(slog.NewTextHandler(&log, nil))
			rules.Add(softctl.Rule{Admin: true, Opcode: &set, Skip: before, Times: 1, Do: refusing})
			c, err := controller.Open(cfg)
			require.NoError(t, err)
			require.NoError(t, c.Reset())
			require.Equal(t, 1, log.Count("refuses the memory of the host's"), log.String())
			n, err := b.HostBuffer()
			require.NoError(t, err)
			require.Equal(t, c.HostBuffer(), n)
			require.Equal(t, before == 5, n == 0)
			require.NoError(t, c.Close())
			_, err = b.HostBuffer()
			require.NoError(t, err)
		})
	}
	t.Run("no memory", func(t *testing.T) {
		b, cfg, _ := testrig.Intercept(t, softctl.Options{HostBuffer: 1 << 20})
		cfg.HostBuffer, cfg.Runtime = 1<<20, noLarge{cfg.Runtime}
		c, err := controller.Open(cfg)
		require.NoError(t, err)
		n, err := b.HostBuffer()
		require.NoError(t, err)
		require.Zero(t, n)
		require.Zero(t, c.HostBuffer())
		require.NoError(t, c.Reset())
		require.NoError(t, c.Close())
	})
	t.Run("no answer", func(t *testing.T) {
		b, cfg, rules := testrig.Intercept(t, softctl.Options{HostBuffer: 1 << 20})
		cfg.HostBuffer = 1 << 20
		rules.Add(softctl.Rule{Admin: true, Opcode: &set, Skip: 2, Times: 1, Do: softctl.Verdict{Drop: true}})
		_, err := controller.Open(cfg)
		require.ErrorIs(t, err, controller.ErrTimeout)
		_, err = b.HostBuffer()
		require.NoError(t, err, "it was not taken away before the controller was disabled")
	})
}

// noLarge has no memory for more than an admin queue.
type noLarge struct{ gpu.Runtime }

func (r noLarge) Alloc(k gpu.MemKind, n int64) (gpu.Memory, error) {
	if n >= 1<<20 {
		return nil, errors.New("there is no memory")
	}
	return r.Runtime.Alloc(k, n)
}

// TestHostBufferFailover: the memory outlives the GPU.
func TestHostBufferFailover(t *testing.T) {
	dev, err := detached.New(true)
	require.NoError(t, err)
	t.Cleanup(dev.Resume)
	soft, err := softctl.Open(testrig.NewImage(t), softctl.Options{Threads: 1, HostBuffer: 1 << 20, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, soft.Close()) })
	var spare atomic.Int32
	var log testrig.LogBuffer
	c, err := controller.Open(controller.Config{Runtime: dev, Transport: soft, HostBuffer: 1 << 20, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Spare: func() (gpu.Runtime, error) { spare.Add(1); return host.Open(host.Options{}) }})
	require.NoError(t, err)
	e, err := engine.New(c, engine.Config{Lanes: 1, HangTimeout: time.Second})
	require.NoError(t, err)
	dev.Refuse()
	require.NoError(t, e.Do(0, []engine.Command{{Op: nvme.IOFlush, NSID: 1}}))
	require.EqualValues(t, 1, spare.Load())
	n, err := soft.HostBuffer()
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, n, log.String())
	require.Equal(t, n, c.HostBuffer())
	_ = c.Close() // it says what is left of the GPU's
	n, err = soft.HostBuffer()
	require.NoError(t, err)
	require.Zero(t, n)
}
