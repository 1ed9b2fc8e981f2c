package main

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/bench"
	"github.com/lanefs/lanefs/cmd/lanefs/internal/doctor"
	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
	"github.com/lanefs/lanefs/gpu/vfio/pci"
)

// proofReport is what `lanefs prove --json` prints, and what its report has. Times are nanoseconds, sizes bytes.
type proofReport struct {
	Version     string           `json:"version"`
	When        time.Time        `json:"when"`
	Device      string           `json:"device"`
	Simulated   bool             `json:"simulated"` // the controller is software
	Writes      string           `json:"writes"`    // what could be written, in words
	Held        int              `json:"held"`
	Failed      int              `json:"failed"`
	Impossible  int              `json:"impossible"`
	Interrupted bool             `json:"interrupted"` // a signal came before the last rung
	Controller  *proofController `json:"controller"`  // null: it was not reached
	Machine     proofMachine     `json:"machine"`
	Rungs       []*proofRung     `json:"rungs"`
	Throughput  []proofSpeed     `json:"throughput"`
	Findings    []doctor.Finding `json:"findings"` // the doctor's
}

type proofController struct {
	Model    string `json:"model"`
	Firmware string `json:"firmware"`
	Serial   string `json:"serial,omitempty"` // only if asked for
	Version  string `json:"version"`
	VID      uint16 `json:"vid"`
	NSID     uint32 `json:"nsid"`
	Blocks   uint64 `json:"blocks"`
	Block    int64  `json:"block_size"`
	Queues   int    `json:"queue_pairs"`
	Transfer int64  `json:"max_transfer"` // 0: no limit
}

type proofMachine struct {
	Kernel      string          `json:"kernel"`
	System      string          `json:"system"`
	CPU         string          `json:"cpu"`
	CPUs        int             `json:"cpus"`
	CommandLine []string        `json:"command_line"` // of the kernel, what is about PCI, IOMMU and VFIO
	Drivers     []proofDriver   `json:"drivers"`
	Runtimes    []proofRuntime  `json:"runtimes"`
	Functions   []proofFunction `json:"functions"` // drives, GPUs, plain memory, and the bridges above them
}

type proofDriver struct {
	Module  string `json:"module"`
	Version string `json:"version"`
}

type proofRuntime struct {
	Name    string `json:"name"`
	Device  string `json:"device"`
	Library string `json:"library"`
	PCI     string `json:"pci,omitempty"`
	Missing string `json:"missing,omitempty"` // why it does not open
}

type proofFunction struct {
	Addr   string `json:"address"`
	ID     string `json:"id"`    // vendor:device
	Class  string `json:"class"` // six digits
	Driver string `json:"driver,omitempty"`
	Group  string `json:"iommu_group,omitempty"`
	NUMA   string `json:"numa_node,omitempty"`
	Link   string `json:"link,omitempty"` // speed and width now
	Path   string `json:"path"`           // from the root complex down
}

// outcome is how a rung ended.
type outcome string

const (
	rungHeld       outcome = "held"
	rungFailed     outcome = "failed"
	rungImpossible outcome = "impossible" // this machine, or what was allowed, does not have what it takes
)

// proofRung is one rung.
type proofRung struct {
	Area    string        `json:"area"`
	Name    string        `json:"name"`
	Outcome outcome       `json:"outcome"`
	Said    string        `json:"said"` // what was seen, or why it did not hold
	Took    time.Duration `json:"took_ns"`
}

// proofSpeed is a measurement of a second: what a first user wants to know, not a benchmark.
type proofSpeed struct {
	What      string        `json:"what"`
	IOPS      float64       `json:"iops"`
	Bandwidth float64       `json:"bytes_per_second"`
	P50       time.Duration `json:"p50_ns"`
	P99       time.Duration `json:"p99_ns"`
}

func newProofSpeed(what string, l *bench.Line) proofSpeed {
	s := proofSpeed{What: what, IOPS: l.IOPS, Bandwidth: l.Bandwidth}
	if l.Read != nil {
		s.P50, s.P99 = l.Read.P50, l.Read.P99
	}
	return s
}

// examineMachine reads what the machine says of itself.
func examineMachine() proofMachine {
	m := proofMachine{CPUs: runtime.NumCPU()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
	}
	m.System = field("/etc/os-release", "PRETTY_NAME=")
	m.CPU = strings.TrimLeft(field("/proc/cpuinfo", "model name"), "\t :")
	cmdline, _ := os.ReadFile("/proc/cmdline")
	for _, word := range strings.Fields(string(cmdline)) {
		for _, about := range []string{"iommu", "pci", "vfio", "amdgpu", "nvidia", "nvme"} {
			if strings.Contains(word, about) {
				m.CommandLine = append(m.CommandLine, word)
				break
			}
		}
	}
	for _, name := range []string{"nvme", "vfio_pci", "vfio_iommu_type1", "iommufd", "amdgpu", "nvidia", "nvidia_uvm", "nvidia_fs", "fuse"} {
		if _, err := os.Stat("/sys/module/" + name); err == nil {
			m.Drivers = append(m.Drivers, proofDriver{name, text("/sys/module/" + name + "/version")})
		}
	}
	m.Functions = examineFunctions()
	return m
}

// examineFunctions are the functions that matter, with their links.
func examineFunctions() (all []proofFunction) {
	functions, _ := pci.System{}.Functions()
	above := map[string]bool{}
	var chosen []*pci.Function
	paths := map[pci.Address]string{}
	for _, f := range functions {
		real, err := filepath.EvalSymlinks(f.SysPath())
		if err != nil {
			continue
		}
		paths[f.Addr] = strings.TrimPrefix(real, "/sys/devices/")
		if f.NVMe() || f.GPU() || f.Memory() {
			for _, b := range strings.Split(filepath.Dir(paths[f.Addr]), "/") {
				above[b] = true
			}
		}
	}
	for _, f := range functions {
		if f.NVMe() || f.GPU() || f.Memory() || above[string(f.Addr)] {
			chosen = append(chosen, f)
		}
	}
	for _, f := range chosen {
		p := proofFunction{Addr: string(f.Addr), ID: fmt.Sprintf("%04x:%04x", f.Vendor, f.Device), Class: fmt.Sprintf("%06x", f.Class), Driver: f.Driver, Group: f.Group,
			NUMA: text(f.SysPath("numa_node")), Path: paths[f.Addr]}
		if speed := text(f.SysPath("current_link_speed")); speed != "" {
			p.Link = speed + " x" + text(f.SysPath("current_link_width"))
		}
		all = append(all, p)
	}
	return all
}

// text is what a small file says, without the end of its line; empty if it cannot be read.
func text(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

// field is what follows a word at the beginning of a line.
func field(path, word string) string {
	b, _ := os.ReadFile(path)
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, word); ok {
			return strings.Trim(strings.TrimSpace(rest), `"`)
		}
	}
	return ""
}

// secrets are the identifiers of a drive, which a report has only if asked for.
func (d *drive) secrets() (all []string) {
	id := d.nvme.Identify()
	all = append(all, id.SN, id.SUBNQN)
	for _, ns := range d.nvme.Namespaces() {
		if ns.Identify != nil {
			all = append(all, hex.EncodeToString(ns.Identify.NGUID[:]), hex.EncodeToString(ns.Identify.EUI64[:]))
		}
		all = append(all, hex.EncodeToString(ns.Descriptor.UUID[:]))
	}
	return all
}

// withoutSecrets replaces identifiers in a text.
func withoutSecrets(s string, secrets []string) string {
	for _, secret := range secrets {
		if len(strings.Trim(secret, "0 ")) >= 4 { // an identifier that is not set hides nothing
			s = strings.ReplaceAll(s, secret, "(left out)")
		}
	}
	return s
}

// print writes the report for people.
func (r *proofReport) print(out io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "lanefs prove %s, LaneFS %s, %s\n", r.Device, r.Version, r.When.Format(time.RFC3339))
	if r.Simulated {
		fmt.Fprintln(&b, "SIMULATED: the controller is software; nothing is proven of a drive")
	}
	fmt.Fprintf(&b, "writes: %s\n", r.Writes)
	if c := r.Controller; c != nil {
		serial := ""
		if c.Serial != "" {
			serial = ", serial " + c.Serial
		}
		fmt.Fprintf(&b, "controller: %s, firmware %s, NVMe %s, vendor %04x%s; namespace %d of %s, blocks of %d bytes\n", c.Model, c.Firmware, c.Version, c.VID, serial,
			c.NSID, units.Bytes(int64(c.Blocks)*c.Block), c.Block)
	}
	m := &r.Machine
	fmt.Fprintf(&b, "machine: Linux %s, %s, %d x %s\n", m.Kernel, m.System, m.CPUs, m.CPU)
	fmt.Fprintf(&b, "command line: %s\n", strings.Join(m.CommandLine, " "))
	for _, d := range m.Drivers {
		fmt.Fprintf(&b, "module: %s %s\n", d.Module, d.Version)
	}
	for _, rt := range m.Runtimes {
		if rt.Missing != "" {
			fmt.Fprintf(&b, "runtime: %s: %s\n", rt.Name, rt.Missing)
		} else {
			fmt.Fprintf(&b, "runtime: %s: %s, %s %s\n", rt.Name, rt.Device, rt.Library, rt.PCI)
		}
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, f := range m.Functions {
		fmt.Fprintf(w, "PCI: %s\t%s\tclass %s\t%s\tgroup %s\tNUMA %s\t%s\t%s\n", f.Addr, f.ID, f.Class, f.Driver, f.Group, f.NUMA, f.Link, f.Path)
	}
	w.Flush()
	area := ""
	for _, g := range r.Rungs {
		if g.Area != area {
			area = g.Area
			fmt.Fprintf(&b, "\n%s\n", area)
		}
		fmt.Fprintln(&b, g)
	}
	if len(r.Throughput) > 0 {
		fmt.Fprint(&b, "\na second of reads\n")
	}
	for _, s := range r.Throughput {
		fmt.Fprintf(&b, "%s: %.0f commands/s, %s/s, p50 %s, p99 %s\n", s.What, s.IOPS, units.Bytes(int64(s.Bandwidth)), units.Duration(s.P50), units.Duration(s.P99))
	}
	fmt.Fprint(&b, "\nthe doctor's findings\n")
	for _, f := range r.Findings {
		mark := map[bool]string{true: "ok", false: "no"}[f.OK]
		fmt.Fprintf(&b, "%s  %s: %s: %s\n", mark, f.Area, f.What, f.Found)
	}
	fmt.Fprintf(&b, "\n%s\n", r.summary())
	_, err := out.Write(b.Bytes())
	return err
}

func (r *proofReport) summary() string {
	text := fmt.Sprintf("%d rungs held, %d failed, %d were impossible here", r.Held, r.Failed, r.Impossible)
	if r.Interrupted {
		text += " or came after the interruption"
	}
	return text
}

func (g *proofRung) String() string {
	mark := map[outcome]string{rungHeld: "held      ", rungFailed: "FAILED    ", rungImpossible: "impossible"}[g.Outcome]
	return fmt.Sprintf("%s  %s: %s", mark, g.Name, g.Said)
}
