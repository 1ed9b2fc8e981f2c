package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/cuda"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/kernels"
)

// finding is one line of the doctor's.
type finding struct {
	What   string `json:"what"`
	OK     bool   `json:"ok"`
	Needed bool   `json:"needed"` // for mounting an image; what is not, a later rung needs
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"`
}

func doctorCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "doctor [--json]",
		Short: "say what works on this machine, what does not, and the remedy",
		Long: `Examines this machine and prints what LaneFS needs, line by line, with the remedy for what is missing. The status is 1 when
an image file cannot be mounted.`,
		Args: exactly0,
		RunE: func(c *cobra.Command, _ []string) error {
			all := examine()
			if err := printFindings(c.OutOrStdout(), all, asJSON); err != nil {
				return err
			}
			for _, f := range all {
				if f.Needed && !f.OK {
					return errors.New("an image file cannot be mounted on this machine; see above")
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func exactly0(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no arguments, got %q", c.Name(), args)
	}
	return nil
}

func examine() []finding {
	return []finding{checkKernel(), checkFUSE(), checkPages(), checkHelper(), checkMemlock(), checkHost(), checkImages(), checkCUDA(), noHIP(), lookVFIO()}
}

func checkKernel() finding {
	var u unix.Utsname
	f := finding{What: "kernel", Needed: true}
	if err := unix.Uname(&u); err != nil {
		f.Found = err.Error()
		return f
	}
	f.OK, f.Found = true, unix.ByteSliceToString(u.Sysname[:])+" "+unix.ByteSliceToString(u.Release[:])
	return f
}

func checkFUSE() finding {
	f := finding{What: "FUSE", Needed: true, Found: "/dev/fuse opens"}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		f.Found, f.Remedy = fmt.Sprintf("/dev/fuse: %v", err), "modprobe fuse; in a container, give it /dev/fuse"
		return f
	}
	unix.Close(fd)
	f.OK = true
	return f
}

// checkPages looks at the largest FUSE request.
func checkPages() finding {
	const path, want = "/proc/sys/fs/fuse/max_pages_limit", 256
	f := finding{What: "FUSE request size"}
	b, err := os.ReadFile(path)
	if err != nil {
		f.OK, f.Found = true, "up to 1 MiB (the kernel has no "+path+")"
		return f
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	f.Found = human(int64(n) * int64(os.Getpagesize()))
	f.OK = err == nil && n >= want
	if !f.OK {
		f.Remedy = fmt.Sprintf("echo %d > %s", want, path)
	}
	return f
}

func checkHelper() finding {
	f := finding{What: "fusermount3"}
	path, err := exec.LookPath("fusermount3")
	if err != nil {
		f.Found, f.Remedy = "not installed: only root can mount", "apt-get install fuse3"
		return f
	}
	f.OK, f.Found = true, path
	return f
}

func checkMemlock() finding {
	f := finding{What: "locked memory limit"}
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		f.Found = err.Error()
		return f
	}
	f.Found = "unlimited"
	if r.Cur != unix.RLIM_INFINITY {
		f.Found = human(int64(r.Cur))
	}
	if f.OK = r.Cur >= 1<<30 || os.Geteuid() == 0; !f.OK {
		f.Remedy = "real devices pin up to 1 GiB: raise it (ulimit -l, or LimitMEMLOCK in a unit); image files do not need it"
	}
	return f
}

// checkHost loads the lanes' kernels as a mount does.
func checkHost() finding {
	f := finding{What: "host runtime", Needed: true}
	rt, err := host.Open(host.Options{})
	if err != nil {
		f.Found = err.Error()
		return f
	}
	defer rt.Close()
	facts := rt.Facts()
	image, err := kernels.Image(facts.Arch)
	if err == nil {
		var m interface{ Close() error }
		if m, err = rt.Load(image); err == nil {
			err = m.Close()
		}
	}
	if err != nil {
		f.Found, f.Remedy = err.Error(), "use a build for this CPU"
		return f
	}
	f.OK, f.Found = true, fmt.Sprintf("kernels for %s load; %d CPUs", facts.Arch, facts.Units)
	return f
}

func checkImages() finding {
	return finding{What: "software controller", Needed: true, OK: true, Found: "built in: serves image files and block devices, simulated"}
}

// checkCUDA opens the GPU and loads the lanes' kernels, as --gpu cuda does.
func checkCUDA() finding {
	f := finding{What: "CUDA runtime"}
	rt, err := cuda.Open(cuda.Options{})
	if err != nil {
		f.Found, f.Remedy = oneLine(err), "--gpu host"
		return f
	}
	defer rt.Close()
	facts := rt.Facts()
	image, err := kernels.Image(facts.Arch)
	if err == nil {
		var m interface{ Close() error }
		if m, err = rt.Load(image); err == nil {
			err = m.Close()
		}
	}
	if err != nil {
		f.Found, f.Remedy = oneLine(err), "--gpu host"
		return f
	}
	f.OK, f.Found = true, fmt.Sprintf("%s (%s), %s; kernels load", facts.Name, facts.Arch, facts.Runtime)
	if missing := rt.Missing(); len(missing) > 0 {
		f.Found += "; " + strings.Join(missing, "; ")
	}
	return f
}

func noHIP() finding {
	return finding{What: "HIP runtime", Found: "not in this build", Remedy: "--gpu host"}
}

// lookVFIO looks for what opening any PCI function needs; whether one function can be had, mount and bind say.
func lookVFIO() finding {
	f := finding{What: "VFIO transport"}
	_, group := os.Stat("/dev/vfio/vfio")
	_, iommufd := os.Stat("/dev/iommu")
	switch {
	case iommufd == nil && group == nil:
		f.OK, f.Found = true, "/dev/iommu and /dev/vfio/vfio are there"
	case iommufd == nil:
		f.OK, f.Found = true, "/dev/iommu is there"
	case group == nil:
		f.OK, f.Found = true, "/dev/vfio/vfio is there (type1)"
	default:
		f.Found, f.Remedy = "neither /dev/iommu nor /dev/vfio/vfio", "modprobe vfio-pci, with the IOMMU on; without it use an image file"
	}
	return f
}

func printFindings(out io.Writer, all []finding, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	for _, f := range all {
		mark := "ok  "
		if !f.OK {
			mark = "no  "
			if f.Needed {
				mark = "FAIL"
			}
		}
		fmt.Fprintf(out, "%s  %-20s %s\n", mark, f.What, f.Found)
		if f.Remedy != "" {
			fmt.Fprintf(out, "      %-20s remedy: %s\n", "", f.Remedy)
		}
	}
	return nil
}
