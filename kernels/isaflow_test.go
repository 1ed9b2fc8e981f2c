package kernels

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// The checks by data flow, of AMD's instructions: over every path through a kernel they follow which registers hold addresses that came from the lane struct,
// and so which of its instructions store an SQE, ring a doorbell or poll. Of these:
//
//   - no path leads from a store of an SQE or of a PRP list to a ring of the SQ doorbell without a whole release between them;
//   - each load from the CQ, of the control word and of a work item's seq goes to memory, past the caches that do not snoop, and so does a wave's of
//     a whole item.
//
// What an instruction does to a value is not looked at: whatever is computed of an address is one of the same thing. Where some threads of a
// wave skip what others do, the registers written there hold what the others wrote. PTX has checks of its own (ptxflow_test.go): its releases
// hang on conditions, which have to be followed there.

// thing is what a value is the address of; a set of bits where paths meet.
type thing uint32

const (
	aLane thing = 1 << iota
	anSQ
	aCQ
	anSQDoorbell
	aCQDoorbell
	aWork
	aPRPList
	aControl
	// The rest matters in PTX only (ptxflow_test.go).
	aResult
	aCID
	aStatus
	aCounter
	aTrace
	aStamp
	aWord
)

// fields are the addresses in the lane struct by their offsets.
var fields = func() map[int]thing {
	var l Lane
	at := map[int]thing{}
	for offset, of := range map[uintptr]thing{unsafe.Offsetof(l.Sq): anSQ, unsafe.Offsetof(l.Cq): aCQ, unsafe.Offsetof(l.SqDoorbell): anSQDoorbell,
		unsafe.Offsetof(l.CqDoorbell): aCQDoorbell, unsafe.Offsetof(l.Work): aWork, unsafe.Offsetof(l.Prp): aPRPList, unsafe.Offsetof(l.Control): aControl,
		unsafe.Offsetof(l.Results): aResult, unsafe.Offsetof(l.Cids): aCID, unsafe.Offsetof(l.Status): aStatus, unsafe.Offsetof(l.Counters): aCounter,
		unsafe.Offsetof(l.Trace): aTrace, unsafe.Offsetof(l.Stamps): aStamp} {
		at[int(offset)] = of
	}
	return at
}()

// value is what is known of a register: an address of these, and in the lane struct at what offset from its start.
type value struct {
	of thing
	at int
}

// point is what is known before an instruction, on any path to it.
type point struct {
	regs     map[string]value
	dirty    bool // an SQE was stored and is not released
	flushing bool // its release has begun, and is not waited for
}

func (p *point) join(q *point, but map[string]bool) (changed bool) {
	for r, v := range q.regs {
		if but[r] {
			continue
		}
		if was, ok := p.regs[r]; !ok || was.of|v.of != was.of {
			p.regs[r] = value{was.of | v.of, v.at}
			changed = true
		}
	}
	for _, b := range [][2]*bool{{&p.dirty, &q.dirty}, {&p.flushing, &q.flushing}} {
		if *b[1] && !*b[0] {
			*b[0], changed = true, true
		}
	}
	return changed
}

// flow is how an instruction set is read.
type flow struct {
	isLoad, isStore, goesToMemory *regexp.Regexp
	begins, completes             *regexp.Regexp // a release: where there is no beginning, its completion is all of it
	branch                        *regexp.Regexp // its last group is the target
	unconditional, ends           *regexp.Regexp
}

func flowOf(arch string) flow {
	re := regexp.MustCompile
	f := flow{isLoad: re(`^(global_load|flat_load|s_load)`), isStore: re(`^(global_store|flat_store)`),
		branch: re(`^s_c?branch\w* .*<\w+\+0x([0-9a-f]+)>`), unconditional: re(`^s_branch`), ends: re(`^s_endpgm`)}
	switch {
	case arch == "gfx90a":
		f.goesToMemory, f.begins, f.completes = re(`\bglc\b`), re(`^buffer_wbl2`), re(`^s_waitcnt .*vmcnt\(0\)`)
	case strings.HasPrefix(arch, "gfx9"):
		f.goesToMemory, f.begins, f.completes = re(`\bsc0 sc1\b`), re(`^buffer_wbl2 sc0 sc1`), re(`^s_waitcnt .*vmcnt\(0\)`)
	case strings.HasPrefix(arch, "gfx11"):
		f.goesToMemory, f.completes = re(`\bglc\b`), re(`^s_waitcnt_vscnt null, 0x0`)
	default:
		f.goesToMemory, f.begins, f.completes = re(`scope:SCOPE_SYS`), re(`^global_wb scope:SCOPE_SYS`), re(`^s_wait_storecnt 0x0`)
	}
	return f
}

// instruction is one, with the instructions that can follow it.
type instruction struct {
	text string
	next []int
}

// instructions is the kernel as a graph. A line is as the disassembler prints it.
func instructions(f flow, lines []string) ([]instruction, error) {
	var all []instruction
	at := map[string]int{} // by address from the kernel's beginning in hexadecimal
	base := uint64(0)
	for _, line := range lines {
		text, comment, _ := strings.Cut(line, "//")
		text = strings.TrimSpace(text)
		if text == "" || strings.HasPrefix(text, ".") || strings.HasSuffix(text, ":") || strings.HasSuffix(text, ">:") {
			continue
		}
		address, _, _ := strings.Cut(strings.TrimSpace(comment), ":")
		n, err := strconv.ParseUint(address, 16, 64)
		if err != nil {
			continue // a heading
		}
		if len(all) == 0 {
			base = n
		}
		at[strconv.FormatUint(n-base, 16)] = len(all)
		if i := strings.Index(comment, "<"); i >= 0 {
			text += " " + comment[i:]
		}
		all = append(all, instruction{text: text})
	}
	for i := range all {
		in := &all[i]
		m := f.branch.FindStringSubmatch(in.text)
		if m != nil {
			to, ok := at[m[len(m)-1]]
			if !ok {
				return nil, fmt.Errorf("a branch to nowhere: %s", in.text)
			}
			in.next = append(in.next, to)
		}
		always := f.ends.MatchString(in.text) || m != nil && f.unconditional.MatchString(in.text)
		if !always && i+1 < len(all) {
			in.next = append(in.next, i+1)
		}
	}
	return all, nil
}

var (
	operand   = regexp.MustCompile(`\b[vsa]\[\d+:\d+\]|\b[vsa]\d+\b|\b(?:vcc|exec)(?:_lo|_hi)?\b|\bnull\b|-?\b0x[0-9a-f]+\b|-?\b\d+\b`)
	immediate = regexp.MustCompile(`offset:(-?\d+)`)
)

var (
	isDword  = regexp.MustCompile(`_(dword|b32)$`)
	isNoPoll = regexp.MustCompile(`_(ubyte|ushort|u8|u16|dwordx4|b128)`)
)

// registers are those of an operand, in order: v[4:5] is two.
func registers(op string) []string {
	var kind string
	var from, to int
	if n, _ := fmt.Sscanf(op, "v[%d:%d]", &from, &to); n == 2 {
		kind = "v"
	} else if n, _ := fmt.Sscanf(op, "s[%d:%d]", &from, &to); n == 2 {
		kind = "s"
	} else if n, _ := fmt.Sscanf(op, "a[%d:%d]", &from, &to); n == 2 {
		kind = "a"
	} else if strings.ContainsAny(op[:1], "vsa") {
		return []string{op}
	} else {
		return nil
	}
	var all []string
	for ; from <= to; from++ {
		all = append(all, kind+strconv.Itoa(from))
	}
	return all
}

// written is what an instruction of an AMD GPU writes, as far as it matters: vector registers.
func written(text string) []string {
	name, rest, _ := strings.Cut(strings.ReplaceAll(text, "\t", " "), " ")
	ops := operand.FindAllString(rest, -1)
	if len(ops) == 0 || strings.Contains(name, "store") || strings.Contains(name, "cmp") || !strings.ContainsAny(ops[0][:1], "va") || strings.HasPrefix(ops[0], "vcc") {
		return nil
	}
	return registers(ops[0])
}

// found counts what a check has looked at, so that one that looks at nothing fails.
type found struct {
	sqes, rings, polls int
	polled             thing // what the polls are of
	items              bool  // some are of a whole item, a thread's part being two dwords
}

// checkFlow returns an error for the first thing that is wrong in a kernel.
func checkFlow(arch string, lines []string) error {
	f := flowOf(arch)
	all, err := instructions(f, lines)
	if err != nil || len(all) == 0 {
		return fmt.Errorf("%d instructions: %w", len(all), err)
	}
	before := make([]*point, len(all))
	before[0] = &point{regs: map[string]value{}}
	// The arguments' address is in the first registers that the first load of them names (AMDGPU Backend, "Kernel Argument Segment").
	for _, in := range all {
		if strings.HasPrefix(in.text, "s_load") {
			for _, r := range registers(operand.FindAllString(in.text[strings.Index(in.text, " "):], -1)[1]) {
				before[0].regs[r] = value{of: kernelArguments}
			}
			break
		}
	}
	var wrong error
	seen := map[int]found{}
	work := []int{0}
	for len(work) > 0 && wrong == nil {
		i := work[len(work)-1]
		work = work[:len(work)-1]
		after := &point{regs: maps.Clone(before[i].regs), dirty: before[i].dirty, flushing: before[i].flushing}
		var what found
		// Two instructions that are issued together read what was before both.
		first, second, two := strings.Cut(all[i].text, " :: ")
		beside := &point{regs: after.regs}
		if two {
			beside.regs = maps.Clone(after.regs)
			wrong = f.apply(arch, second, beside, &what)
		}
		if wrong = errors.Join(wrong, f.apply(arch, first, after, &what)); wrong != nil {
			break
		}
		for _, r := range written(second) {
			after.regs[r] = beside.regs[r]
		}
		seen[i] = what
		for k, n := range all[i].next {
			// A branch round what no thread is to do: what would have been written there does not count after it.
			var but map[string]bool
			if k == 0 && len(all[i].next) > 1 && strings.HasPrefix(all[i].text, "s_cbranch_exec") && n > i {
				but = map[string]bool{}
				for _, in := range all[i+1 : n] {
					first, second, _ := strings.Cut(in.text, " :: ")
					for _, r := range append(written(first), written(second)...) {
						but[r] = true
					}
				}
			}
			if before[n] == nil {
				before[n] = &point{regs: map[string]value{}}
				before[n].join(after, but)
				work = append(work, n)
			} else if before[n].join(after, but) && !slices.Contains(work, n) {
				work = append(work, n)
			}
		}
	}
	if wrong != nil {
		return wrong
	}
	var sum found
	for _, s := range seen {
		sum.sqes, sum.rings, sum.polls, sum.polled = sum.sqes+s.sqes, sum.rings+s.rings, sum.polls+s.polls, sum.polled|s.polled
		sum.items = sum.items || s.items
	}
	for of, name := range map[thing]string{aCQ: "the CQ", aWork: "the work ring", aControl: "the control word"} {
		if sum.polled&of == 0 {
			return fmt.Errorf("no poll of %s goes to memory", name)
		}
	}
	if !sum.items && slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, "<lanefs_wave") }) {
		return errors.New("no poll of a whole item goes to memory, and a wave makes one")
	}
	if sum.sqes < 4 || sum.rings < 1 || sum.polls < 3 {
		return fmt.Errorf("found only %d stores of SQEs, %d rings of the SQ doorbell, %d polls: the check has lost the addresses", sum.sqes, sum.rings, sum.polls)
	}
	return nil
}

const kernelArguments thing = 1 << 31

// apply is one instruction: what it does to p, and what is wrong with it there.
func (f flow) apply(arch, text string, p *point, what *found) error {
	name, rest, _ := strings.Cut(strings.ReplaceAll(text, "\t", " "), " ")
	rest, _, _ = strings.Cut(rest, "<")
	ops := operand.FindAllString(rest, -1)
	imm := 0
	if m := immediate.FindStringSubmatch(rest); m != nil {
		imm, _ = strconv.Atoi(m[1])
	}
	base := func(of []string) (v value) {
		for _, op := range of {
			for _, r := range registers(op) {
				if got := p.regs[r]; got.of != 0 {
					v = value{v.of | got.of, got.at}
				}
			}
		}
		return v
	}
	switch {
	case f.isStore.MatchString(text):
		addr := ops[:1]
		if strings.HasPrefix(ops[0], "v") && len(ops) > 2 && strings.HasPrefix(ops[2], "s") {
			addr = []string{ops[0], ops[2]}
		}
		to := base(addr)
		if to.of&(anSQ|aPRPList) != 0 {
			p.dirty = true
			if to.of&anSQ != 0 {
				what.sqes++
			}
		}
		if to.of&anSQDoorbell != 0 && isDword.MatchString(name) {
			what.rings++
			if p.dirty || p.flushing {
				return fmt.Errorf("the SQ doorbell may be rung before the SQE is released: %s", text)
			}
		}
		return nil
	case f.begins != nil && f.begins.MatchString(text):
		if p.dirty {
			p.dirty, p.flushing = false, true
		}
	case f.completes.MatchString(text):
		p.flushing = false
		if f.begins == nil {
			p.dirty = false
		}
	}
	if f.isLoad.MatchString(text) {
		into, from := ops[:1], ops[1:]
		from = slices.DeleteFunc(slices.Clone(from), func(op string) bool { return registers(op) == nil })
		if strings.HasPrefix(name, "s_load") && len(ops) > 2 {
			n, err := strconv.ParseInt(ops[len(ops)-1], 0, 64)
			if err == nil {
				imm = int(n)
			}
		}
		of := base(from)
		direct := f.goesToMemory.MatchString(text)
		// What is narrower than a dword is of a CID's record or a tag, what is wider than two of an item: no poll is.
		if of.of&(aCQ|aControl|aWork) != 0 && !isNoPoll.MatchString(name) {
			if direct {
				what.polls++
				what.polled |= of.of
				what.items = what.items || of.of&aWork != 0 && !isDword.MatchString(name)
			} else if of.of&aWork == 0 || isDword.MatchString(name) { // a seq has a dword; the rest of an item is read after an acquire: isa_test.go
				return fmt.Errorf("a poll that may find old bytes in a cache: %s", text)
			}
		}
		var dst []string
		for _, op := range into {
			dst = append(dst, registers(op)...)
		}
		for i, r := range dst {
			v := value{}
			switch {
			case of.of&kernelArguments != 0 && imm+i*4 < 8:
				v = value{of: aLane}
			case of.of&kernelArguments != 0:
				v = value{}
			case of.of&aLane != 0:
				v = value{of: fields[(of.at+imm+i*4)&^7]}
			}
			p.regs[r] = v
		}
		return nil
	}
	if len(ops) == 0 || f.branch.MatchString(text) {
		return nil
	}
	if strings.Contains(name, "cmp") || strings.HasPrefix(name, "s_wait") || len(registers(ops[0])) == 0 {
		return nil
	}
	dst, from := registers(ops[0]), ops[1:]
	if len(from) > 0 && strings.Contains(name, "_co_") || strings.Contains(name, "mad_u64") || strings.Contains(name, "mad_co") {
		from = from[1:] // the carry
	}
	// A move of several registers moves each; all else makes one value of all.
	if len(from) == 1 && len(registers(from[0])) == len(dst) {
		for i, r := range registers(from[0]) {
			p.regs[dst[i]] = p.regs[r]
		}
		return nil
	}
	v := base(from)
	if v.of&aLane != 0 && strings.Contains(name, "add") && !strings.Contains(name, "addc") {
		for _, op := range from {
			if n, err := strconv.ParseInt(op, 0, 64); err == nil && len(from) == 2 {
				v.at += int(n)
			}
		}
	}
	if strings.HasPrefix(name, "v_writelane") {
		v.of |= p.regs[dst[0]].of
	}
	for _, r := range dst {
		p.regs[r] = v
	}
	return nil
}

// laneKernels are those that drive lanes.
var laneKernels = []string{WaveResidentKernel, ResidentKernel, StepKernel, WaveStepKernel, BatchKernel, WaveBatchKernel}

// TestISAComplete: every image for a GPU is of an instruction set that is checked, and has the kernels that are checked, and besides only such as have
// nothing to order.
func TestISAComplete(t *testing.T) {
	for folder, more := range map[string][]string{"images": nil, "traced/images": {"lanefs_clock", "lanefs_check_blocks", "lanefs_write_blocks"}} {
		others := append([]string{ResetKernel, RingKernel, PRPKernel, GatherKernel, WritePatternKernel, CheckPatternKernel}, more...)
		files, err := os.ReadDir(folder)
		require.NoError(t, err)
		seen := 0
		for _, f := range files {
			arch, kind, _ := strings.Cut(strings.TrimSuffix(f.Name(), ".gz"), ".")
			image := imageOf(t, strings.TrimPrefix(arch, "host-"))
			if folder != "images" {
				image = tracedImageOf(t, arch+"."+kind)
			}
			name := regexp.MustCompile(`\.entry (\w+)\(`)
			switch kind {
			case "so":
				continue // of a CPU
			case "co":
				name = regexp.MustCompile(`\.symbol: +(\w+)\.kd`)
			}
			seen++
			require.Contains(t, isas, arch, "%s/%s", folder, f.Name())
			var has []string
			for _, m := range name.FindAllStringSubmatch(notes(t, image, arch), -1) {
				has = append(has, m[1])
			}
			require.ElementsMatch(t, append(others, laneKernels...), has, "%s/%s: a kernel that is not checked, or is missing", folder, f.Name())
		}
		require.Equal(t, len(isas), seen, folder)
	}
	require.ElementsMatch(t, append([]string{ResetKernel, RingKernel}, laneKernels...), ptxKernels)
}

// TestFlow checks every kernel of lanes that production launches, those of measurements too: of two instruction sets, of which make test takes one, and with
// LANEFS_ISA=all of all. Of the measurements', and of the other instruction sets, it takes one without that.
func TestFlow(t *testing.T) {
	whole := os.Getenv("LANEFS_ISA") == "all"
	for arch := range isas {
		if strings.HasPrefix(arch, "sm_") {
			continue
		}
		kernels, images := laneKernels, map[string][]byte{"": imageOf(t, arch)}
		if k := slices.Index([]string{"gfx942", "gfx1201"}, arch); !whole && (k < 0 || !disktest.Turn(k, 2)) {
			kernels = kernels[:1]
		} else {
			images["traced/"] = tracedImageOf(t, arch+".co")
		}
		for name, image := range images {
			all := kernels
			if name != "" && !whole {
				all = all[:1]
			}
			for _, kernel := range all {
				t.Run(arch+"/"+name+kernel, func(t *testing.T) {
					t.Parallel()
					require.NoError(t, checkFlow(arch, disassembly(t, image, arch, kernel)))
				})
			}
		}
	}
}

// TestFlowFinds takes the releases out of each instruction set's instructions, and what sends polls to memory: the check must know both where it is used.
func TestFlowFinds(t *testing.T) {
	for arch := range isas {
		if strings.HasPrefix(arch, "sm_") {
			continue
		}
		t.Run(arch, func(t *testing.T) {
			t.Parallel()
			lines, f := disassembly(t, imageOf(t, arch), arch, WaveResidentKernel), flowOf(arch)
			change := func(of func(text string) bool, to func(text string) string) (changed []string) {
				for _, line := range lines {
					text, rest, _ := strings.Cut(line, "//")
					if of(strings.TrimSpace(text)) {
						text = to(text)
					}
					changed = append(changed, text+"//"+rest)
				}
				return changed
			}
			begin := f.begins
			if begin == nil {
				begin = f.completes
			}
			nop := func(string) string { return "\ts_nop 0 " }
			require.ErrorContains(t, checkFlow(arch, change(begin.MatchString, nop)), "before the SQE is released")
			require.ErrorContains(t, checkFlow(arch, change(f.completes.MatchString, nop)), "before the SQE is released", "the wait alone")
			cached := func(text string) string { return f.goesToMemory.ReplaceAllString(text, "") }
			require.ErrorContains(t, checkFlow(arch, change(f.isLoad.MatchString, cached)), "old bytes in a cache")
		})
	}
}

// tracedImageOf is the image of package traced, which imports this one.
func tracedImageOf(t *testing.T, file string) []byte {
	t.Helper()
	f, err := os.Open(filepath.Join("traced", "images", file+".gz"))
	require.NoError(t, err)
	defer f.Close()
	r, err := gzip.NewReader(f)
	require.NoError(t, err)
	image, err := io.ReadAll(r)
	require.NoError(t, err)
	return image
}

// disassembly is one kernel of an AMD GPU as the disassembler prints it.
func disassembly(t *testing.T, image []byte, arch, kernel string) []string {
	t.Helper()
	return strings.Split(run(t, toolOf(arch, "llvm-objdump"), "-d", "--disassemble-symbols="+kernel, imageFile(t, image, arch)), "\n")
}
