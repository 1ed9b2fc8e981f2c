package kernels

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// PTX as the compiler prints it: a kernel as a graph of instructions, and what its registers may hold addresses of.
// Specification: NVIDIA, Parallel Thread Execution ISA 7.0 [PTX]: 8 memory consistency model, 9 instructions.

// ptxInstruction is one instruction.
type ptxInstruction struct {
	line   int // of the kernel's text, from 1
	text   string
	guard  string // the predicate without which it is not executed, if any
	unless bool   // it is executed if the guard does not hold
	op     string // "st.volatile.global.u32"
	name   string // "st"
	into   []string
	from   []string
	base   string // of the address, a register, or the name of a parameter
	at     int    // what is added to it
	next   []int  // what may follow; of a branch that may not be taken the target comes first
}

func (in *ptxInstruction) is(part string) bool { return strings.Contains("."+in.op+".", "."+part+".") }

// ptxNames are the instructions that are known. All but those of the first two lines write their first operand, and touch no memory.
var ptxNames = strings.Fields(`ld st atom red fence membar bar bra ret
	nanosleep
	add sub mul mad div rem min max and or xor not neg abs shl shr cvt selp setp mov popc clz bfe bfind brev prmt shfl vote match`)

var (
	ptxGuard   = regexp.MustCompile(`^@(!?)(%p\d+)\s+`)
	ptxMemory  = regexp.MustCompile(`\[(%?\w+)(?:\+(-?\d+))?\]`)
	ptxOperand = regexp.MustCompile(`%[\w.]+|-?\b(?:0[xXdDfF])?[0-9a-fA-F]+\b|\btmp\b`)
	ptxTemp    = regexp.MustCompile(`^\{ \.reg \.b32 tmp; (.*;) \}$`)
)

// parsePTX is a kernel's text as instructions.
func parsePTX(lines []string) ([]ptxInstruction, error) {
	var all []ptxInstruction
	labels := map[string]int{}
	body := false
	for n, line := range lines {
		text, _, _ := strings.Cut(line, "//")
		text = strings.TrimSpace(text)
		if m := ptxTemp.FindStringSubmatch(text); m != nil {
			text = m[1]
		}
		switch label, isLabel := strings.CutSuffix(text, ":"); {
		case text == "{":
			body = true
			continue
		case !body || text == "" || text == "}" || strings.HasPrefix(text, "."):
			continue
		case isLabel:
			labels[label] = len(all)
			continue
		}
		in := ptxInstruction{line: n + 1, text: text}
		if m := ptxGuard.FindStringSubmatch(text); m != nil {
			in.unless, in.guard = m[1] != "", m[2]
			text = text[len(m[0]):]
		}
		text, ok := strings.CutSuffix(text, ";")
		rest := ""
		if i := strings.IndexAny(text, " \t"); i >= 0 {
			text, rest = text[:i], strings.TrimSpace(text[i:])
		}
		in.op = text
		in.name, _, _ = strings.Cut(in.op, ".")
		if !ok || !slices.Contains(ptxNames, in.name) {
			return nil, fmt.Errorf("line %d: an instruction that is not known: %s", n+1, in.text)
		}
		if m := ptxMemory.FindStringSubmatch(rest); m != nil {
			in.base = m[1]
			in.at, _ = strconv.Atoi(m[2])
			rest = strings.Replace(rest, m[0], "@", 1)
		}
		switch in.name {
		case "bra":
			in.from = []string{rest}
		case "st", "red", "fence", "membar", "bar", "ret", "nanosleep":
			in.from = ptxOperand.FindAllString(rest, -1)
		default: // the first operand is written: one register, or several in braces
			first := rest
			if i := strings.Index(rest, "}"); strings.HasPrefix(rest, "{") && i >= 0 {
				first, rest = rest[:i], rest[i:]
			} else {
				first, rest, _ = strings.Cut(rest, ",")
			}
			in.into, in.from = ptxOperand.FindAllString(first, -1), ptxOperand.FindAllString(rest, -1)
		}
		all = append(all, in)
	}
	for i := range all {
		in := &all[i]
		if in.name == "bra" {
			to, ok := labels[in.from[0]]
			if !ok {
				return nil, fmt.Errorf("line %d: a branch to nowhere: %s", in.line, in.text)
			}
			in.next = append(in.next, to)
		}
		if ends := in.name == "bra" || in.name == "ret"; !ends || in.guard != "" {
			if i+1 == len(all) {
				return nil, fmt.Errorf("line %d: the kernel's end is reached without a return", in.line)
			}
			in.next = append(in.next, i+1)
		}
		if in.guard != "" && in.name != "bra" {
			return nil, fmt.Errorf("line %d: a guard of what is no branch: %s", in.line, in.text)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no instructions")
	}
	return all, nil
}

// place is a register as the address of one thing.
type place struct {
	register string
	of       thing
}

// ptxValues says of each register what it may hold, wherever it is: of what an address, at what offset, and whether it is a constant.
type ptxValues struct {
	of map[string]thing
	at map[place]int     // what was added to the thing's address, or to that of one of the thing's entries
	is map[string]string // the constant of a register that is set once, to an immediate
}

// noPlace is that different things were added: no offset.
const noPlace = -1 << 30

// offset of what a memory operand addresses, as the address of a thing.
func (v *ptxValues) offset(in *ptxInstruction, of thing) int {
	if at := v.at[place{in.base, of}]; at != noPlace {
		return at + in.at
	}
	return noPlace
}

// ptxValuesOf finds them, by going over the kernel until nothing is new: whatever is computed of an address is one of the same thing.
func ptxValuesOf(all []ptxInstruction) (*ptxValues, error) {
	v := &ptxValues{of: map[string]thing{}, at: map[place]int{}, is: map[string]string{}}
	sets := map[string]int{}
	for i := range all {
		for _, r := range all[i].into {
			sets[r]++
		}
	}
	changed := true
	add := func(r string, of thing, at int) {
		p := place{r, of}
		if was, ok := v.at[p]; !ok {
			v.at[p], v.of[r], changed = at, v.of[r]|of, true
		} else if was != at && was != noPlace {
			v.at[p], changed = noPlace, true
		}
	}
	for changed {
		changed = false
		for i := range all {
			in := &all[i]
			switch in.name {
			case "ld":
				if in.is("param") {
					if of := ptxArguments[in.base]; of != 0 {
						add(in.into[0], of, 0)
					}
					break
				}
				if v.of[in.base]&aLane == 0 {
					break
				}
				at := v.offset(in, aLane)
				if at == noPlace {
					return nil, fmt.Errorf("line %d: somewhere in the lane: %s", in.line, in.text)
				}
				for k, r := range in.into {
					if of, ok := fields[at+k*in.width()]; ok {
						add(r, of, 0)
					}
				}
			case "setp", "atom", "vote", "match":
			default:
				if in.name == "mov" && len(in.from) == 1 && len(in.into) == 1 && sets[in.into[0]] == 1 && !strings.HasPrefix(in.from[0], "%") {
					v.is[in.into[0]] = in.from[0]
				}
				plus := 0
				if in.name == "add" {
					plus, _ = strconv.Atoi(in.from[1])
				}
				for _, r := range in.into {
					for _, from := range in.from {
						for of := thing(1); of != 0 && of <= v.of[from]; of <<= 1 {
							if at, ok := v.at[place{from, of}]; ok && r != "tmp" {
								if at != noPlace {
									at += plus
								}
								add(r, of, at)
							}
						}
					}
				}
			}
		}
	}
	return v, nil
}

// width of a register that an instruction loads, in bytes.
func (in *ptxInstruction) width() int {
	n, _ := strconv.Atoi(strings.TrimLeft(in.op[strings.LastIndex(in.op, ".")+1:], "usb"))
	return n / 8
}

// ptxArguments are the kernels' arguments that are addresses (names.go).
var ptxArguments = map[string]thing{"lanefs_resident_param_4": aWord, "lanefs_wave_resident_param_4": aWord, "lanefs_ring_param_0": anSQDoorbell}

func init() {
	for _, kernel := range []string{ResetKernel, StepKernel, BatchKernel, ResidentKernel, WaveStepKernel, WaveBatchKernel, WaveResidentKernel} {
		ptxArguments[kernel+"_param_0"] = aLane
	}
}
