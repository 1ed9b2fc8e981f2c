package doctor

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// NVIDIA's Multi-Process Service lets kernels of several processes run side by side; without it contexts take turns, 2 ms each (H100). Its
// processes are found by name, its pipes where CUDA looks for them (NVIDIA, "Multi-Process Service").

const (
	mpsPipes   = "/tmp/nvidia-mps"
	mpsVar     = "CUDA_MPS_PIPE_DIRECTORY"
	mpsControl = "nvidia-cuda-mps-control"
	commLength = 15 // the kernel keeps so much of a name
)

// mps says whether MPS runs, where there is a CUDA runtime, and what that changes.
func (x *examiner) mps() {
	if !x.runtime("cuda") {
		return
	}
	f := Finding{Area: Lanes, What: "CUDA's MPS"}
	pipes := cmp.Or(os.Getenv(mpsVar), mpsPipes)
	switch pids := x.processes(mpsControl); {
	case len(pids) == 0:
		f.Found = "does not run: beside a program's kernels the GPU's lanes wait for their turn, and a read takes milliseconds where the mount has no lanes on the CPU (lanes=N, or data in the GPU's memory)"
		f.Remedy = fmt.Sprintf("%s -d before the mount, as the user who mounts and runs the programs; or lanes=gpu:N+cpu:M; memory that only stages fill needs neither", mpsControl)
	case !x.exists(filepath.Join(pipes, "control")):
		f.Found = fmt.Sprintf("runs (process %s), but has no pipes in %s, where lanefs looks", strings.Join(pids, ", "), pipes)
		f.Remedy = "set " + mpsVar + " for lanefs as for it and the programs"
	default:
		f.OK = true
		f.Found = fmt.Sprintf("runs (process %s, pipes in %s): lanes and the kernels of programs run side by side; a program whose kernel faults ends the lanes on the GPU, which then move to the CPU",
			strings.Join(pids, ", "), pipes)
	}
	x.add(f)
}

// processes are the identifiers of those with a name.
func (r root) processes(name string) (pids []string) {
	name = name[:min(len(name), commLength)]
	for _, pid := range r.names("proc") {
		if _, err := strconv.Atoi(pid); err == nil && r.text(filepath.Join("proc", pid, "comm")) == name {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}
