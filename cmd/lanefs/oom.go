package main

import (
	"os"
	"strings"
)

const (
	oomAdjustPath = "/proc/self/oom_score_adj" // proc(5)
	oomAdjust     = "-500"                     // as if the process had half of the machine's memory less
)

// spareFromOOM asks the kernel to end other processes first when memory runs out. Who has files open loses them with the daemon, and it frees little: most of what is counted for it are
// pages of an image that stay in memory without it. An administrator's own setting stays. It takes CAP_SYS_RESOURCE; where that is missing nothing changes.
func spareFromOOM() {
	if b, err := os.ReadFile(oomAdjustPath); err == nil && strings.TrimSpace(string(b)) == "0" {
		_ = os.WriteFile(oomAdjustPath, []byte(oomAdjust), 0)
	}
}
