package mountopt

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lanefs/lanefs/gpu"
)

// maxGPUs is what one host has at most.
const maxGPUs = 16

const wantGPU = "auto, host, hip or cuda; of the last three also which, as in cuda:0,1, of the last two also by UUID or PCI address"

var errGPU = errors.New("want " + wantGPU)

// parseGPU reads a runtime's name and its devices, with commas or + between them: ordinals, UUIDs, PCI addresses.
func parseGPU(text string) (name string, which []string, err error) {
	name, list, several := strings.Cut(text, ":")
	if !slices.Contains([]string{"auto", "host", "hip", "cuda"}, name) || several && name == "auto" {
		return "", nil, errGPU
	}
	if !several {
		return name, nil, nil
	}
	for part := range strings.SplitSeq(strings.ReplaceAll(list, "+", ","), ",") {
		n, ok := gpu.Ordinal(part)
		switch {
		case ok:
			part = strconv.Itoa(n)
		case name == "host" || !isDevice(part):
			return "", nil, errGPU
		}
		if slices.ContainsFunc(which, func(w string) bool { return strings.EqualFold(w, part) }) {
			return "", nil, fmt.Errorf("%s:%s is there twice", name, part)
		}
		which = append(which, part)
	}
	if len(which) > maxGPUs {
		return "", nil, fmt.Errorf("%d GPUs: at most %d", len(which), maxGPUs)
	}
	if len(which) > 1 && slices.ContainsFunc(which, gpu.IsMIG) {
		return "", nil, errors.New("a MIG instance is a mount's only device: CUDA shows a process no more than one")
	}
	return name, which, nil
}

// isDevice reports whether text names a device otherwise than by its ordinal.
func isDevice(text string) bool { return gpu.IsUUID(text) || gpu.IsPCIAddress(text) }
