package doctor

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A tree is what Examine reads of a machine, as lines "KIND\tPATH\tQUOTED": d a directory, l a symbolic link and its
// target, f a file and its contents. Those in testdata were taken from machines, by
//
//	LANEFS_DOCTOR_CAPTURE=1 doctor.test -test.run TestCapture

// captured are the files of a tree, as patterns. Of a directory only its being there is kept.
var captured = []string{
	"proc/sys/kernel/osrelease", "proc/self/limits", "proc/sys/fs/fuse/max_pages_limit", "proc/swaps",
	"dev/fuse", "dev/iommu", "dev/vfio/*", "dev/vfio/devices/*", "dev/kfd", "dev/nvidiactl", "usr/bin/fusermount3", "bin/fusermount3",
	"sys/class/iommu/*", "sys/kernel/iommu_groups/*/type", "sys/kernel/iommu_groups/*/devices/*",
	"sys/bus/pci/drivers/vfio-pci", "sys/module/vfio_iommu_type1", "sys/module/vfio/parameters/enable_unsafe_noiommu_mode",
	"sys/module/fuse/parameters/enable_uring", "proc/sys/kernel/io_uring_disabled",
	"sys/bus/pci/devices/*", "sys/class/block/nvme*",
}

// ofFunction are the files of each PCI function.
var ofFunction = []string{
	"class", "vendor", "device", "resource", "driver", "iommu_group", "driver_override", "physfn", "virtfn*", "mem_info_vram_total",
	"vfio-dev/*", "nvme/*/model", "nvme/*/dev", "nvme/*/nvme*n*", "nvme/*/nvme*n*/dev", "nvme/*/nvme*n*/holders/*",
}

// TestCapture prints this machine's tree.
func TestCapture(t *testing.T) {
	if os.Getenv("LANEFS_DOCTOR_CAPTURE") == "" {
		t.Skip("a tool, not a test: set LANEFS_DOCTOR_CAPTURE to print this machine's tree")
	}
	fmt.Print("TREE\n", capture(), "TREE END\n")
}

func capture() string {
	var paths []string
	for _, p := range captured {
		found, _ := filepath.Glob("/" + p)
		paths = append(paths, found...)
	}
	functions, _ := filepath.Glob("/sys/bus/pci/devices/*")
	for _, f := range functions {
		dir, err := filepath.EvalSymlinks(f)
		if err != nil {
			continue
		}
		for _, p := range ofFunction {
			found, _ := filepath.Glob(dir + "/" + p)
			paths = append(paths, found...)
		}
	}
	slices.Sort(paths)
	var out strings.Builder
	line := func(kind, path, text string) {
		fmt.Fprintf(&out, "%s\t%s\t%s\n", kind, strings.TrimPrefix(path, "/"), strconv.Quote(text))
	}
	for _, p := range slices.Compact(paths) {
		st, err := os.Lstat(p)
		switch {
		case err != nil:
		case st.Mode()&os.ModeSymlink != 0 && strings.HasPrefix(p, "/sys"):
			to, _ := os.Readlink(p)
			line("l", p, to)
		case st.IsDir():
			line("d", p, "")
		case strings.HasPrefix(p, "/dev") || strings.HasSuffix(p, "fusermount3"):
			line("f", p, "")
		default:
			if b, err := os.ReadFile(p); err == nil {
				line("f", p, string(b))
			}
		}
	}
	// Of what is long, only what is asked for.
	x := &examiner{}
	release := x.text("proc/sys/kernel/osrelease")
	if config, from := x.config(); from != "" {
		var kept strings.Builder
		for _, o := range options {
			if v := config["CONFIG_"+o.name]; v != "" {
				fmt.Fprintf(&kept, "CONFIG_%s=%s\n", o.name, v)
			}
		}
		line("f", "boot/config-"+release, kept.String())
	}
	var names strings.Builder
	asked := []string{symDMABUFMap, symPAL, symPALMatch}
	for _, o := range options {
		asked = append(asked, o.symbol)
	}
	for _, s := range asked {
		if s != "" && x.symbol(s) {
			fmt.Fprintf(&names, "0 T %s\n", s)
		}
	}
	line("f", "proc/kallsyms", names.String())
	uid := 65534
	if x.asRoot() {
		uid = 0
	}
	line("f", "proc/self/status", fmt.Sprintf("Uid:\t%d\t%d\t%d\t%d\n", uid, uid, uid, uid))
	return out.String()
}

// tree unpacks a machine of testdata.
type tree struct {
	t    *testing.T
	root string
}

func machine(t *testing.T, name string) tree {
	b, err := os.ReadFile(filepath.Join("testdata", name+".tree"))
	require.NoError(t, err)
	r := tree{t, t.TempDir()}
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		f := strings.SplitN(sc.Text(), "\t", 3)
		require.Len(t, f, 3, sc.Text())
		text, err := strconv.Unquote(f[2])
		require.NoError(t, err, sc.Text())
		switch f[0] {
		case "d":
			require.NoError(t, os.MkdirAll(r.path(f[1]), 0o755))
		case "l":
			require.NoError(t, os.MkdirAll(filepath.Dir(r.path(f[1])), 0o755))
			require.NoError(t, os.Symlink(text, r.path(f[1])))
		case "f":
			r.write(f[1], text)
		}
	}
	require.NoError(t, sc.Err())
	return r
}

func (r tree) path(p string) string { return filepath.Join(r.root, p) }

func (r tree) write(p, text string) {
	require.NoError(r.t, os.MkdirAll(filepath.Dir(r.path(p)), 0o755))
	require.NoError(r.t, os.WriteFile(r.path(p), []byte(text), 0o666))
}

func (r tree) remove(p string) { require.NoError(r.t, os.RemoveAll(r.path(p))) }

func (r tree) link(target, p string) {
	r.remove(p)
	require.NoError(r.t, os.Symlink(target, r.path(p)))
}

func (r tree) examine(runtimes ...Runtime) *Report {
	return Examine(Options{Root: r.root, Runtimes: runtimes})
}

// line is the finding with a name, of which there is one.
func line(t *testing.T, r *Report, area, what string) Finding {
	t.Helper()
	var found []Finding
	for _, f := range r.Findings {
		if f.Area == area && f.What == what {
			found = append(found, f)
		}
	}
	require.Len(t, found, 1, "%s: %s in %+v", area, what, r.Findings)
	return found[0]
}
