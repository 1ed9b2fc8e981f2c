package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/mountopt"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
)

// A function that no machine has. Errors of the runtime come before the function is looked for.
const nowhere = "0000:ff:1f.7"

// TestFunctionRuntime: a GPU that is named for a PCI function is taken or the mount fails, as with an image file.
func TestFunctionRuntime(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "-1") // where there is a GPU, it is not seen
	for _, c := range []struct {
		cfg        mountConfig
		want, said string
	}{
		{mountConfig{Device: nowhere, Config: mountopt.Config{GPU: "host"}}, "no PCI function " + nowhere, ""},
		{mountConfig{Device: nowhere, Config: mountopt.Config{GPU: "cuda"}}, "cuda runtime: ", ""},
		{mountConfig{Device: nowhere, Config: mountopt.Config{GPU: "vulkan"}}, `--gpu "vulkan": want auto, host, hip or cuda`, ""},
		{mountConfig{Device: nowhere, Config: mountopt.Config{GPU: "hip", VRAM: "0000:ff:1f.6"}},
			"--vram 0000:ff:1f.6 is for --gpu host: the lanes of --gpu hip have the GPU's own memory", ""},
		{mountConfig{Device: nowhere, Config: mountopt.Config{GPU: "cuda", VRAM: "0000:ff:1f.6"}}, "is for --gpu host", ""},
		{mountConfig{Device: nowhere, Config: mountopt.Config{GPU: "auto", VRAM: "0000:ff:1f.6"}}, "device memory: there is no PCI function 0000:ff:1f.6",
			`the lanes run on the CPU" why="with --vram they do`},
		{mountConfig{Device: "/image", Config: mountopt.Config{GPU: "host", VRAM: "0000:ff:1f.6"}}, "--vram is for a PCI function", ""},
	} {
		t.Run(fmt.Sprintf("%s %s %s", c.cfg.Device, c.cfg.GPU, c.cfg.VRAM), func(t *testing.T) {
			var log bytes.Buffer
			_, err := openController(&c.cfg, nil, slog.New(slog.NewTextHandler(&log, nil)))
			require.ErrorContains(t, err, c.want)
			require.Contains(t, log.String(), c.said)
		})
	}
}

// TestLadder: what is tried on which machine, the best first.
func TestLadder(t *testing.T) {
	cpu, err := host.Open(host.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cpu.Close()) })
	device, err := detached.New(false)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, device.Close()) })
	const auto, direct, bar, bridge = engine.DoorbellAuto, engine.DoorbellDirect, engine.DoorbellBAR, engine.DoorbellBridge
	for _, c := range []struct {
		name  string
		rt    gpu.Runtime
		bar   bool
		cfg   mountConfig
		bells []engine.DoorbellRoute
		modes []controller.MemoryMode
	}{
		{"CPU, image", cpu, false, mountConfig{Device: "/image"}, []engine.DoorbellRoute{auto}, []controller.MemoryMode{0}},
		{"CPU, drive", cpu, false, mountConfig{Device: nowhere}, []engine.DoorbellRoute{auto}, []controller.MemoryMode{0}},
		{"CPU, drive, a BAR", cpu, true, mountConfig{Device: nowhere}, []engine.DoorbellRoute{auto}, []controller.MemoryMode{10, 0}},
		{"GPU, image", device, false, mountConfig{Device: "/image"}, []engine.DoorbellRoute{bar, bridge}, []controller.MemoryMode{0}},
		{"GPU, drive", device, false, mountConfig{Device: nowhere}, []engine.DoorbellRoute{bar, direct, bridge}, []controller.MemoryMode{1, 0}},
		{"asked for", device, false, mountConfig{Device: nowhere, Config: mountopt.Config{MemoryMode: ptr(controller.MemoryMode(8)), Doorbell: bar}},
			[]engine.DoorbellRoute{bar}, []controller.MemoryMode{8}},
		{"the bridge's words in device memory", device, false, mountConfig{Device: nowhere, Config: mountopt.Config{MemoryMode: ptr(controller.MemoryMode(4))}},
			[]engine.DoorbellRoute{auto}, []controller.MemoryMode{4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctl := drive{rt: c.rt}
			if c.bar {
				ctl.bar = &barMemory{}
			}
			l := ctl.ladder(&c.cfg)
			require.Equal(t, engine.Candidates{Doorbells: c.bells, Modes: c.modes}, l)
			for _, m := range l.Modes {
				require.True(t, m.Ordered() || c.cfg.MemoryMode != nil, "mode %d puts completions and data into different memories", m)
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }
