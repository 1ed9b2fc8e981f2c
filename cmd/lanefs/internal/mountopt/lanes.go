package mountopt

import (
	"fmt"
	"strings"
)

var wantLanes = fmt.Sprintf("a number from 1 to %d, or gpu:N+cpu:M of that sum at most", MaxLanes)

var errLanes = fmt.Errorf("want %s", wantLanes)

// parseLanes reads N, or gpu:N and cpu:M joined by +, in any order; the GPU's may be left out.
func parseLanes(text string) (gpu, cpu int, err error) {
	if n, ok := number(text); ok {
		if n < 1 || n > MaxLanes {
			return 0, 0, errLanes
		}
		return int(n), 0, nil
	}
	seen := map[string]int{}
	for part := range strings.SplitSeq(text, "+") {
		kind, count, _ := strings.Cut(part, ":")
		n, ok := number(count)
		_, twice := seen[kind]
		if !ok || twice || n < 0 || n > MaxLanes || kind != "gpu" && kind != "cpu" || kind == "gpu" && n == 0 {
			return 0, 0, errLanes
		}
		seen[kind] = int(n)
	}
	if seen["gpu"]+seen["cpu"] > MaxLanes {
		return 0, 0, errLanes
	}
	return seen["gpu"], seen["cpu"], nil
}
