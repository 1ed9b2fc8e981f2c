// Package kerneltest holds the kernels by which tests measure lanes on a device (load.hip). Only tests import it.
package kerneltest

import (
	"embed"

	"github.com/lanefs/lanefs/kernels"
)

// Made by build.sh of package kernels, and committed.
//
//go:embed images/*.gz
var built embed.FS

// Image is what gpu.Runtime.Load takes on a device of the architecture arch.
func Image(arch string) ([]byte, error) { return kernels.Images(built).Image(arch) }

// SlotsImage is an image for a CPU of the architecture arch, of the engine's kernels and those below, whose lanes are one thread
// with several slots, as GPUs have them.
func SlotsImage(arch string) ([]byte, error) { return Image(arch + "-slots") }

// The kernels of every image. lanes is the device address of the first lane, stride the bytes between two; the i-th team
// serves lane i.
const (
	// LoadKernel and WaveLoadKernel (lanes, stride, total, depth, timeout) carry out total commands on each lane, made on
	// the device, at most depth in flight.
	LoadKernel     = "lanefs_load"
	WaveLoadKernel = "lanefs_wave_load"
	// LaneKernel and WaveLaneKernel (lanes, stride, limit, words, number) are the engine's resident loop, in a launch
	// of its own for each lane: words is the address of a 64-bit word for each (kernels.ResidentKernel).
	LaneKernel     = "lanefs_lane"
	WaveLaneKernel = "lanefs_wave_lane"
	// NullKernel (lanes, stride, total, limit, out) is a controller: a wave for each queue.
	NullKernel = "lanefs_null"
	// FeedKernel (lanes, stride, total, most, limit, out) feeds the work rings: a wave for each.
	FeedKernel = "lanefs_feed"
	// EchoKernel (in, out, rounds, limit) answers a word with the same word.
	EchoKernel = "lanefs_echo"
)
