package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/bench"
	"github.com/lanefs/lanefs/cmd/lanefs/internal/doctor"
	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
	"github.com/lanefs/lanefs/gpu/calls"
	"github.com/lanefs/lanefs/gpu/vfio"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/pcie"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// climb tries all rungs. The error is of what is not a rung: contents that could not be put back.
func (p *prover) climb() error {
	p.machine()
	if !p.device() {
		return p.dev.close()
	}
	err := p.lanes("lanes on the CPU", "host")
	if p.gpuRuntime() {
		p.gpuLanes()
		err = errors.Join(err, p.writes("writes, lanes on the GPU", p.gpu))
	}
	p.memory()
	p.speed()
	p.failover()
	return errors.Join(err, p.dev.close())
}

// on opens the controller with a runtime, with queues and data in host memory. Another one that is open is closed first.
func (p *prover) on(runtime string) error {
	if p.dev.drive.nvme != nil && p.dev.cfg.GPU == runtime && p.dev.drive.nvme.Err() == nil {
		return nil
	}
	if err := p.dev.close(); err != nil {
		return err
	}
	p.dev.cfg.GPU, p.dev.cfg.MemoryMode, p.dev.cfg.Doorbell, p.dev.cfg.Lanes = runtime, new(controller.MemoryMode), engine.DoorbellBAR, 4
	return p.dev.open()
}

// anew is on after a rung that may have left something behind.
func (p *prover) anew(runtime string) error {
	if err := p.dev.close(); err != nil {
		return err
	}
	return p.on(runtime)
}

func (p *prover) function() bool { return isFunction(p.dev.cfg.Device) }

// machine is what can be seen without touching the device.
func (p *prover) machine() {
	p.begin("the machine")
	p.r.Machine = examineMachine()
	p.rung("the doctor's checks", func() (string, error) {
		d := doctor.Examine(doctor.Options{Runtimes: examinedRuntimes(p.stop)})
		p.r.Findings = d.Findings
		good := 0
		for _, f := range d.Findings {
			if f.OK {
				good++
			}
		}
		if !d.Healthy() {
			return "", errors.New("image files cannot be mounted on this machine: lanefs doctor says why")
		}
		return fmt.Sprintf("%d of %d findings are ok; the others keep it from a drive, a GPU or a higher rung", good, len(d.Findings)), nil
	})
	for _, r := range examinedRuntimes(p.stop) {
		m := proofRuntime{Name: r.Name}
		rt, err := r.Open()
		if err != nil {
			m.Missing = oneLine(err)
		} else {
			f := rt.Facts()
			m.Device, m.Library, m.PCI = f.Name, f.Runtime, f.PCI
			_ = rt.Close()
		}
		p.r.Machine.Runtimes = append(p.r.Machine.Runtimes, m)
	}
}

// device is the road to the controller. Without it nothing else can be tried.
func (p *prover) device() bool {
	p.begin("the device")
	cfg := &p.dev.cfg
	if !p.rung("it is there, and free for user space", func() (string, error) {
		if p.refusal != nil {
			return "", p.refusal
		}
		if !p.function() {
			// Whether something has it is known when it is claimed.
			ctl, err := softctl.Open(cfg.Device, softctl.Options{BlockSize: cfg.LBA, ReadOnly: cfg.ReadOnly, Queues: 1, Log: p.log})
			if err != nil {
				return "", err
			}
			if err := ctl.Close(); err != nil {
				return "", err
			}
			return "an image or block device: the controller is LaneFS's own, in software (SIMULATED)", nil
		}
		return "the driver vfio-pci has it", nil
	}) {
		return false
	}
	p.rung("an IOMMU group of its own", func() (string, error) {
		if !p.function() {
			return "", cannot{"it is no PCI function"}
		}
		f, err := nvmeFunction(cfg.Device)
		if err != nil {
			return "", err
		}
		others, err := f.Companions()
		if err != nil {
			return "", err
		}
		if f.Group == "" {
			return "", errors.New("it is in no group: the IOMMU is off")
		}
		if len(others) > 0 {
			return "", fmt.Errorf("other drivers have functions of its group %s, the first is %s", f.Group, others[0].Addr)
		}
		return "group " + f.Group, nil
	})
	p.rung("its registers can be mapped", func() (said string, err error) {
		if !p.function() {
			return "", cannot{"the software controller has no BAR"}
		}
		dev, err := pcie.Open(cfg.Device, vfio.Options{Backend: vfio.Backend(cfg.VFIO), Log: p.log})
		if err != nil {
			return "", err
		}
		defer func() { err = errors.Join(err, dev.Close()) }()
		return fmt.Sprintf("BAR 0 has %s; the way to the IOMMU is %s", units.Bytes(int64(len(dev.BAR()))), dev.Backend()), nil
	})
	if !p.rung("the controller starts, and its admin queue answers", func() (string, error) {
		if err := p.on("host"); err != nil {
			return "", err
		}
		p.hide = p.dev.drive.secrets()
		n := p.dev.drive.nvme
		p.r.Simulated = n.Simulated()
		return fmt.Sprintf("NVMe %v, pages of %s, queues of up to %d entries", n.Version(), units.Bytes(n.PageSize()), n.Capabilities().MQES()), nil
	}) {
		return false
	}
	return p.rung("Identify, and a namespace that can be used", p.identify)
}

func (p *prover) identify() (string, error) {
	if p.dev.cfg.Part > 0 { // its table is read through a device of its own
		if err := p.dev.close(); err != nil {
			return "", err
		}
	}
	if err := p.dev.find(0, 0); err != nil {
		return "", err
	}
	n, id := p.dev.drive.nvme, p.dev.drive.nvme.Identify()
	ns, err := n.Namespace(p.dev.cfg.namespace())
	if err != nil {
		return "", err
	}
	c := &proofController{Model: id.MN, Firmware: id.FR, Version: fmt.Sprint(n.Version()), VID: id.VID, NSID: ns.ID, Blocks: ns.Blocks, Block: ns.BlockSize,
		Queues: n.Queues(), Transfer: n.MaxTransfer()}
	if p.o.serial {
		c.Serial = id.SN
	}
	p.r.Controller = c
	if err := p.chooseScratch(ns); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, firmware %s; namespace %d: %d blocks of %d bytes; %d queue pairs", c.Model, c.Firmware, c.NSID, c.Blocks, c.Block, c.Queues), nil
}

// destroyed is how much --destroy writes, at the beginning of DEVICE, and mostScratch how much can be put back, in bytes.
const (
	destroyed   = 64 << 20
	mostScratch = 256 << 20
)

// chooseScratch says which blocks of the namespace may be written.
func (p *prover) chooseScratch(ns *controller.Namespace) error {
	switch {
	case p.o.destroy:
		p.first, p.blocks = p.dev.first, min(p.dev.blocks, destroyed/uint64(ns.BlockSize))
		p.r.Writes = "allowed everywhere (--destroy)"
	case p.o.scratch != "":
		if p.first+p.blocks < p.first || p.first+p.blocks > p.dev.blocks {
			return fmt.Errorf("--scratch %s: there are %d blocks", p.o.scratch, p.dev.blocks)
		}
		if p.blocks > mostScratch/uint64(ns.BlockSize) {
			return fmt.Errorf("--scratch %s: %s can be put back at most", p.o.scratch, units.Bytes(mostScratch))
		}
		p.first += p.dev.first
		p.r.Writes = fmt.Sprintf("blocks %s, put back (--scratch)", p.o.scratch)
	default:
		return nil
	}
	if p.blocks*uint64(ns.BlockSize) < 4096 {
		return fmt.Errorf("%d blocks of %d bytes may be written: want 4096 bytes at least", p.blocks, ns.BlockSize)
	}
	return nil
}

// proven is engine.Prove, in one way.
func (p *prover) proven(runtime string, w way) error {
	if err := p.on(runtime); err != nil {
		return err
	}
	err := errors.Join(p.dev.prove(w, p.dev.cfg.namespace()), p.moved())
	var refused *engine.Refused
	if err != nil && !errors.As(err, &refused) {
		err = errors.Join(err, p.anew(runtime)) // it may have left something behind
	}
	return err
}

// moved is the error of lanes that have left a GPU that failed: what held after that was the CPU's.
func (p *prover) moved() error {
	if f := p.dev.drive.nvme.Failover(); f != nil {
		return fmt.Errorf("the lanes failed on %s and moved to %s: %s", f.From, f.To, f.Why)
	}
	return nil
}

// sameBytes says what a rung of engine.Prove has shown.
const sameBytes = "the same bytes for the lanes, for the controller and for the CPU"

// lanes is what needs no GPU.
func (p *prover) lanes(area, runtime string) error {
	p.begin(area)
	p.rung("queues and data in host memory", func() (string, error) {
		return sameBytes, p.proven(runtime, way{0, engine.DoorbellBAR})
	})
	p.rung("doorbells over the bridge", func() (string, error) {
		return sameBytes, p.proven(runtime, way{0, engine.DoorbellBridge})
	})
	p.rung("the controller refuses an invalid LBA", func() (string, error) { return p.invalidLBA(runtime) })
	p.rung("no interrupts: completions are polled", func() (string, error) { return p.interrupts(runtime) })
	p.rung("a reset of the controller, and the same bytes after", func() (string, error) { return p.reset(runtime) })
	return p.writes("writes, lanes on the CPU", runtime)
}

// with gives f an engine on a runtime, in host memory.
func (p *prover) with(runtime string, f func(e *engine.Engine) error) (err error) {
	if err := p.on(runtime); err != nil {
		return err
	}
	c := p.dev.drive.nvme
	place, err := controller.MemoryMode(0).Placement()
	if err == nil {
		err = c.Place(place)
	}
	if err != nil {
		return err
	}
	ec := p.dev.cfg.engine()
	ec.Lanes, ec.CPULanes, ec.Doorbell = 1, 0, engine.DoorbellAuto
	e, err := engine.New(c, ec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	return f(e)
}

// bytesOf reads blocks of the namespace, at most a command's.
func (p *prover) bytesOf(e *engine.Engine, lba uint64, blocks uint32) ([]byte, error) {
	return p.transfer(e, nvme.IORead, lba, blocks, nil)
}

// transfer reads blocks, or writes b to them.
func (p *prover) transfer(e *engine.Engine, op nvme.Opcode, lba uint64, blocks uint32, b []byte) (_ []byte, err error) {
	c := e.Controller()
	n := int64(blocks) * p.r.Controller.Block
	m, err := c.AllocData(n)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if b != nil {
		copy(m.Bytes(), b)
		err = m.Push(0, n)
	}
	if err == nil {
		err = e.Do(0, []engine.Command{{Op: op, NSID: p.dev.cfg.namespace(), SLBA: lba, NLB: blocks, Data: m.IOVA(), Len: uint32(n)}})
	}
	if err == nil {
		err = m.Pull(0, n)
	}
	return bytes.Clone(m.Bytes()[:n]), err
}

// digest is a sum over the first and the last blocks.
func (p *prover) digest(e *engine.Engine) (sum [sha256.Size]byte, err error) {
	blocks := uint32(min(p.dev.blocks, uint64(e.MaxTransfer()/p.r.Controller.Block), 256))
	h := sha256.New()
	for _, lba := range []uint64{p.dev.first, p.dev.first + p.dev.blocks - uint64(blocks)} {
		b, err := p.bytesOf(e, lba, blocks)
		if err != nil {
			return sum, err
		}
		h.Write(b)
	}
	h.Sum(sum[:0])
	return sum, nil
}

func (p *prover) invalidLBA(runtime string) (said string, err error) {
	return said, p.with(runtime, func(e *engine.Engine) error {
		_, err := p.bytesOf(e, p.r.Controller.Blocks, 1)
		var status *nvme.StatusError
		switch {
		case err == nil:
			return fmt.Errorf("a read of block %d, behind the end, succeeded", p.r.Controller.Blocks)
		case !errors.As(err, &status):
			return err
		case !status.Status.Is(nvme.StatusLBARange):
			return fmt.Errorf("a read of block %d, behind the end, ended otherwise: %w", p.r.Controller.Blocks, err)
		}
		said = fmt.Sprintf("%v, as an error of the command; the next command works", status.Status)
		_, err = p.bytesOf(e, p.dev.first, 1)
		return err
	})
}

func (p *prover) interrupts(runtime string) (string, error) {
	if !p.function() {
		return "", cannot{"the software controller has none"}
	}
	f, err := nvmeFunction(p.dev.cfg.Device)
	if err != nil {
		return "", err
	}
	err = p.with(runtime, func(e *engine.Engine) error {
		if _, err := p.bytesOf(e, p.dev.first, 1); err != nil {
			return err
		}
		if list, err := os.ReadDir(f.SysPath("msi_irqs")); err == nil && len(list) > 0 {
			return fmt.Errorf("the kernel has %d message interrupts for it", len(list))
		}
		b, err := os.ReadFile("/proc/interrupts")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, string(f.Addr)) {
				return fmt.Errorf("/proc/interrupts has %q", strings.TrimSpace(line))
			}
		}
		return nil
	})
	return "none is allocated, and commands complete", err
}

func (p *prover) reset(runtime string) (said string, err error) {
	err = p.with(runtime, func(e *engine.Engine) error {
		before, err := p.digest(e)
		if err != nil {
			return err
		}
		began := time.Now()
		if err := e.Controller().Reset(); err != nil {
			return err
		}
		said = fmt.Sprintf("%s for the reset, queue pairs and all", units.Duration(time.Since(began)))
		after, err := p.digest(e)
		if err == nil && after != before {
			err = errors.New("other bytes are read than before")
		}
		return err
	})
	return said, err
}

// writes has kernels write patterns, and check what comes back, in the blocks that may be written.
func (p *prover) writes(area, runtime string) (err error) {
	p.begin(area)
	why := "nothing may be written: --scratch FIRST-LAST or --destroy allows it"
	if p.lost {
		why = "what was in the scratch blocks could not be put back before: nothing more is written to them"
	}
	if p.blocks == 0 || p.lost {
		p.rung("patterns that kernels write and check", func() (string, error) { return "", cannot{why} })
		return nil
	}
	var saved []byte
	if !p.o.destroy {
		if !p.rung("what is there is kept", func() (string, error) {
			err := p.with(runtime, func(e *engine.Engine) (err error) { saved, err = p.save(e); return err })
			return units.Bytes(int64(len(saved))), err
		}) {
			return nil
		}
		defer heldOff()()
	}
	p.rung("patterns that kernels write and check", func() (string, error) { return p.patterns(runtime) })
	if p.o.destroy {
		return nil
	}
	if !p.owed("what was there is put back", func() (string, error) {
		return "and compared", p.with(runtime, func(e *engine.Engine) error { return p.putBack(e, saved) })
	}) {
		p.lost = true
		err = errors.New("what was in the scratch blocks could not be put back")
		if name, failed := keepScratch(saved, p.r.When); failed != nil {
			err = fmt.Errorf("%w, nor be kept in a file: %w", err, failed)
		} else {
			err = fmt.Errorf("%w: it is in %s", err, name)
		}
	}
	return err
}

// keepScratch keeps what could not be put back in a new file, here or where temporary files are. It writes over none, and follows no link: a clock that was set
// back tells a time twice.
func keepScratch(saved []byte, when time.Time) (path string, err error) {
	for _, dir := range []string{".", os.TempDir()} {
		f, failed := os.CreateTemp(dir, "lanefs-scratch-"+when.Format("20060102-150405")+"-")
		if failed == nil {
			_, failed = f.Write(saved)
			failed = errors.Join(failed, f.Sync(), f.Close())
			if failed == nil {
				return filepath.Clean(f.Name()), nil
			}
			_ = os.Remove(f.Name())
		}
		err = errors.Join(err, failed)
	}
	return "", err
}

// each calls f for the blocks that may be written, a command's at a time.
func (p *prover) each(e *engine.Engine, f func(lba uint64, blocks uint32) error) error {
	most := min(uint64(e.MaxTransfer()/p.r.Controller.Block), 1<<16)
	for at := uint64(0); at < p.blocks; at += most {
		if err := f(p.first+at, uint32(min(most, p.blocks-at))); err != nil {
			return err
		}
	}
	return nil
}

func (p *prover) save(e *engine.Engine) (all []byte, err error) {
	err = p.each(e, func(lba uint64, blocks uint32) error {
		b, err := p.bytesOf(e, lba, blocks)
		all = append(all, b...)
		return err
	})
	return all, err
}

func (p *prover) putBack(e *engine.Engine, saved []byte) error {
	left := saved
	err := p.each(e, func(lba uint64, blocks uint32) error {
		n := int64(blocks) * p.r.Controller.Block
		_, err := p.transfer(e, nvme.IOWrite, lba, blocks, left[:n])
		left = left[n:]
		return err
	})
	if err == nil {
		err = e.Do(0, []engine.Command{{Op: nvme.IOFlush, NSID: p.dev.cfg.namespace()}})
	}
	if err != nil {
		return err
	}
	now, err := p.save(e)
	if err == nil && !bytes.Equal(now, saved) {
		err = errors.New("other bytes are read than were written")
	}
	return err
}

// job is a measurement on a runtime, of so many blocks from first on.
func (p *prover) job(first, blocks uint64) bench.Job {
	size := max(p.r.Controller.Block, 4096)
	return bench.Job{NSID: p.r.Controller.NSID, First: first, Blocks: blocks, Block: size, Lanes: 2, Depth: 32, Reads: 100, Seed: uint64(p.r.When.UnixNano()),
		Engine: engine.Config{Team: p.dev.cfg.engine().Team}}
}

func (p *prover) patterns(runtime string) (string, error) {
	if err := p.on(runtime); err != nil {
		return "", err
	}
	j := p.job(p.first, p.blocks)
	j.Reads, j.Sequential, j.Verify = 0, true, true
	j.Count = j.Blocks / uint64(j.Block/p.r.Controller.Block)
	r, err := bench.Run(p.stop, p.dev.drive.nvme, j, func(bench.Progress) {})
	err = errors.Join(err, p.moved())
	switch {
	case err != nil:
		return "", err
	case r.Failed > 0:
		return "", fmt.Errorf("%d commands failed, the first: %w", r.Failed, r.FirstError)
	case r.Wrong > 0:
		return "", fmt.Errorf("%d of %d blocks were wrong: %s", r.Wrong, r.Checked, r.FirstWrong)
	case r.Checked == 0:
		return "", cannot{"interrupted before anything was checked"}
	}
	return fmt.Sprintf("%d blocks of %s written, flushed, read and found right", r.Checked, units.Bytes(j.Block)), nil
}

// gpuRuntime finds the GPU that --gpu means, and runs a kernel on it.
func (p *prover) gpuRuntime() bool {
	p.begin("the GPU")
	asked := p.dev.asked
	return p.rung("its runtime opens, and runs a kernel", func() (string, error) {
		if asked == "host" || p.dev.cfg.VRAM != "" {
			return "", cannot{"--gpu host, or --vram: the lanes are to run on the CPU"}
		}
		var why []string
		for _, g := range gpus {
			if asked != "" && asked != "auto" && asked != g.name {
				continue
			}
			rt, err := openNamed(g.name, p.log, p.stop)
			if errors.Is(err, calls.ErrHangs) { // which is no way for a GPU to be missing
				return "", err
			}
			if err != nil {
				why = append(why, oneLine(err))
				continue
			}
			f := rt.Facts()
			p.gpu = g.name
			return fmt.Sprintf("%s, %s", f.Name, f.Runtime), rt.Close()
		}
		if asked == "hip" || asked == "cuda" {
			return "", errors.New(strings.Join(why, "; ")) // it was said to be there
		}
		return "", cannot{strings.Join(why, "; ")}
	})
}

// gpuLanes is the GPU's lanes on host memory, by every route to the doorbells. The first route that holds is used from then on.
func (p *prover) gpuLanes() {
	p.rung("a kernel rings the admin doorbell, and finds the answer in the GPU's memory", func() (string, error) {
		if err := p.on(p.gpu); err != nil {
			return "", err
		}
		r, err := engine.ProveDoorbell(p.dev.drive.nvme)
		if err != nil {
			return "", &engine.Refused{Err: err}
		}
		return fmt.Sprintf("in %v memory", r.Kind), nil
	})
	p.route = engine.DoorbellAuto
	for _, route := range []engine.DoorbellRoute{engine.DoorbellBAR, engine.DoorbellDirect, engine.DoorbellBridge} {
		if p.rung(fmt.Sprintf("lanes on the GPU, queues and data in host memory, doorbells by %v", route), func() (string, error) {
			return sameBytes, p.proven(p.gpu, way{0, route})
		}) && p.route == engine.DoorbellAuto {
			p.route = route
		}
	}
}

// rungModes are the memory modes in the order in which a mount would like them least first, those with the bridge's words last.
var rungModes = []controller.MemoryMode{8, 1, 2, 3, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15}

// memory is queues and data in device memory.
func (p *prover) memory() {
	runtime, route, whose := p.gpu, p.route, "the GPU's memory"
	if runtime == "" {
		runtime, route, whose = "host", engine.DoorbellBAR, "memory that stands for a device's, which proves nothing of a GPU"
		if p.dev.cfg.VRAM != "" {
			whose = "memory of " + p.dev.cfg.VRAM
		}
	}
	if dev, ok := p.dev.drive.ctl.(*pcie.Function); ok {
		whose += fmt.Sprintf(", mapped by %s", dev.Backend())
	}
	p.begin("queues and data in device memory: " + whose)
	for _, m := range rungModes {
		w := way{m, route}
		if m&controller.ModeDoorbell != 0 {
			w.route = engine.DoorbellBridge
		}
		p.modes[m] = p.rung(fmt.Sprintf("memory mode %d: %s", m, modeWords(m)), func() (string, error) {
			if err := p.proven(runtime, w); err != nil {
				return "", err
			}
			if p.function() && !m.Ordered() {
				return sameBytes + "; completions and data are in different memories: a register is read after reads, so that their data is there", nil
			}
			return sameBytes, nil
		})
	}
	p.rung("kernels see what the controller writes over bytes that they have in their caches, 16 times", func() (string, error) {
		for _, m := range []controller.MemoryMode{11, 8, 10, 9} {
			if !p.modes[m] {
				continue
			}
			for range 16 {
				if err := p.proven(runtime, way{m, route}); err != nil {
					return "", err
				}
			}
			return fmt.Sprintf("in memory mode %d", m), nil
		}
		return "", cannot{"no memory mode with data in device memory held"}
	})
}

// modeWords says what a memory mode has in device memory.
func modeWords(m controller.MemoryMode) string {
	var parts []string
	for _, b := range []struct {
		bit  controller.MemoryMode
		name string
	}{{controller.ModeSQ, "submission queues"}, {controller.ModeCQ, "completion queues"}, {controller.ModeDoorbell, "the bridge's doorbells"}, {controller.ModeData, "data"}} {
		if m&b.bit != 0 {
			parts = append(parts, b.name)
		}
	}
	if bits.OnesCount8(uint8(m)) == 1 {
		return parts[0]
	}
	return strings.Join(parts[:len(parts)-1], ", ") + " and " + parts[len(parts)-1]
}

// failover is what happens when a GPU fails. It comes last: what a GPU that failed had registered is never taken back, for its kernels may wake
// up, and CUDA does not register the same memory twice.
func (p *prover) failover() {
	p.begin("when the GPU fails")
	p.rung("the lanes move to the CPU, and read the same bytes", func() (said string, err error) {
		if p.gpu == "" {
			return "", cannot{"there is no GPU whose lanes could move"}
		}
		if p.route == engine.DoorbellAuto {
			return "", cannot{"no lanes ran on the GPU"}
		}
		if err := p.anew(p.gpu); err != nil {
			return "", err
		}
		err = p.with(p.gpu, func(e *engine.Engine) error {
			before, err := p.digest(e)
			if err != nil {
				return err
			}
			c := e.Controller()
			began := time.Now()
			c.Recover(c.Generation(), controller.RuntimeError{Err: errors.New("lanefs prove asks for it")})
			took := time.Since(began)
			if err := c.Err(); err != nil {
				return err
			}
			f := c.Failover()
			if f == nil {
				return errors.New("they have not moved")
			}
			said = fmt.Sprintf("from %s to %s in %s", f.From, f.To, units.Duration(took))
			after, err := p.digest(e)
			if err == nil && after != before {
				err = errors.New("other bytes are read than before")
			}
			return err
		})
		return said, errors.Join(err, p.dev.close())
	})
}

// speed is a snapshot of the throughput, of reads.
func (p *prover) speed() {
	p.begin("throughput")
	one := func(what, runtime string, set func(j *bench.Job)) {
		p.rung(what, func() (string, error) {
			if err := p.on(runtime); err != nil {
				return "", err
			}
			j := p.job(p.dev.first, p.dev.blocks)
			j.Time = p.o.time
			set(&j)
			line := bench.NewLine(j)
			r, err := bench.Run(p.stop, p.dev.drive.nvme, j, func(bench.Progress) {})
			if err = errors.Join(err, p.moved()); err != nil {
				return "", errors.Join(err, p.dev.close())
			}
			line.Set(r)
			if r.Failed > 0 {
				return "", fmt.Errorf("%d commands failed, the first: %w", r.Failed, r.FirstError)
			}
			s := newProofSpeed(what, line)
			p.r.Throughput = append(p.r.Throughput, s)
			return fmt.Sprintf("%.0f commands/s, %s/s, p50 %s, p99 %s", s.IOPS, units.Bytes(int64(s.Bandwidth)), units.Duration(s.P50), units.Duration(s.P99)), nil
		})
	}
	runtimes := []string{"host"}
	if p.gpu != "" && p.route != engine.DoorbellAuto {
		runtimes = append(runtimes, p.gpu)
	}
	for _, runtime := range runtimes {
		route, mode := engine.DoorbellAuto, controller.MemoryMode(0)
		if runtime != "host" {
			route = p.route
			if p.modes[1] && p.function() {
				mode = 1 // as a mount has it
			}
		}
		set := func(j *bench.Job) { j.Engine.Doorbell, j.Mode = route, mode }
		one("one read of 4 KiB at a time, by "+runtime, runtime, func(j *bench.Job) { set(j); j.Lanes, j.Depth = 1, 1 })
		one("reads of 4 KiB at random, 64 in flight, by "+runtime, runtime, set)
		one("reads of 128 KiB in order, 64 in flight, by "+runtime, runtime, func(j *bench.Job) {
			set(j)
			j.Sequential = true
			n := p.dev.blocks * uint64(p.r.Controller.Block)
			for want := uint64(128 << 10); want > uint64(j.Block); want /= 2 {
				if want <= n && (p.r.Controller.Transfer == 0 || want <= uint64(p.r.Controller.Transfer)) {
					j.Block = int64(want)
					return
				}
			}
		})
	}
}
