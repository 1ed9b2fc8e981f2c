package mountopt

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxGPUs is what one host has at most.
const maxGPUs = 16

const wantGPU = "auto, host, hip or cuda; of the last three also which, as in cuda:0,1"

var errGPU = errors.New("want " + wantGPU)

// parseGPU reads a runtime's name and ordinals, with commas or + between them.
func parseGPU(text string) (name string, ordinals []int, err error) {
	name, list, several := strings.Cut(text, ":")
	if !slices.Contains([]string{"auto", "host", "hip", "cuda"}, name) || several && name == "auto" {
		return "", nil, errGPU
	}
	if !several {
		return name, nil, nil
	}
	for part := range strings.SplitSeq(strings.ReplaceAll(list, "+", ","), ",") {
		n, ok := number(part)
		switch {
		case !ok || n < 0 || n >= 1<<16:
			return "", nil, errGPU
		case slices.Contains(ordinals, int(n)):
			return "", nil, fmt.Errorf("%s:%d is there twice", name, n)
		}
		ordinals = append(ordinals, int(n))
	}
	if len(ordinals) > maxGPUs {
		return "", nil, fmt.Errorf("%d GPUs: at most %d", len(ordinals), maxGPUs)
	}
	return name, ordinals, nil
}
