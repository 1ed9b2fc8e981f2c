package kernels

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

//go:generate ./build.sh

// Made by build.sh and committed: a Go program that imports this package builds without clang.
//
//go:embed images/*.gz
var built embed.FS

// Images is a file system with a directory "images", which has one image for each architecture, compressed.
type Images embed.FS

func (i Images) archs() []string {
	entries, err := embed.FS(i).ReadDir("images")
	if err != nil {
		panic(err) // an embed.FS has its own directory
	}
	var archs []string
	for _, e := range entries {
		name, _, _ := strings.Cut(e.Name(), ".")
		archs = append(archs, strings.TrimPrefix(name, "host-"))
	}
	slices.Sort(archs)
	return archs
}

// Image is what gpu.Runtime.Load takes on a device of the architecture arch: a shared object for a CPU, a code object
// for an AMD GPU, PTX text for an NVIDIA GPU. AMD's feature suffixes ("gfx942:sramecc+:xnack-") are ignored, the images
// run with any; an AMD GPU without an image of its own takes that of its family, which ROCm loads from 6.4 on; an NVIDIA device takes
// the newest PTX that is not newer than itself, and compiles it.
func Image(arch string) ([]byte, error) { return Images(built).Image(arch) }

// Image is the one for arch, as the function of that name gives it.
func (i Images) Image(arch string) ([]byte, error) {
	base, _, _ := strings.Cut(arch, ":")
	names := []string{"host-" + base + ".so", base + ".co", base + ".ptx"}
	if family := generic(base); family != "" {
		names = append(names, family+".co")
	}
	if best := i.newestPTX(base); best != "" {
		names = append(names, best+".ptx")
	}
	for _, name := range names {
		packed, err := embed.FS(i).ReadFile("images/" + name + ".gz")
		if err != nil {
			continue
		}
		r, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return nil, fmt.Errorf("the kernels' image %s: %w", name, err)
		}
		return io.ReadAll(r)
	}
	return nil, fmt.Errorf("no kernels were built for the architecture %q: there are %s", arch, strings.Join(i.archs(), ", "))
}

// generic is LLVM's target for all GPUs of arch's family (User Guide for AMDGPU Backend, "Generic Processors"), empty where none is built.
func generic(arch string) string {
	switch {
	case slices.Contains([]string{"gfx940", "gfx941", "gfx942", "gfx950"}, arch):
		return "gfx9-4-generic"
	case len(arch) == len("gfx1100") && (strings.HasPrefix(arch, "gfx110") || strings.HasPrefix(arch, "gfx115")):
		return "gfx11-generic"
	case arch == "gfx1200" || arch == "gfx1201":
		return "gfx12-generic"
	}
	return ""
}

// newestPTX is the architecture of the newest PTX that runs on arch, empty if there is none.
func (i Images) newestPTX(arch string) string {
	limit, ok := capability(arch)
	best, most := "", 0
	for _, a := range i.archs() {
		if c, isPTX := capability(a); ok && isPTX && c <= limit && c > most {
			best, most = a, c
		}
	}
	return best
}

// capability is the number in "sm_90" or "sm_90a".
func capability(arch string) (int, bool) {
	digits, found := strings.CutPrefix(arch, "sm_")
	n, err := strconv.Atoi(strings.TrimRight(digits, "af"))
	return n, found && err == nil
}
