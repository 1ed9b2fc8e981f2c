package kernels

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// The checks by data flow of PTX, of the text that is embedded: over every path through a kernel (ptxpaths_test.go), in the terms of PTX's memory
// model [PTX 8]. A strong operation of system scope is one that the CPU and the controller take part in: .volatile, .relaxed.sys, .acquire.sys,
// .release.sys. All others are weak, or of a scope that leaves those out; they may stay in a cache, and are ordered by fences only. Of fences
// those of system scope count. The threads of a wave are threads of that model as any others: what one has done comes before what another does
// only after bar.warp.sync, and vote and shfl order nothing.

// ptxOrder is one thing that is checked: what an instruction makes of the state that the path is in. State 0 is that nothing is owed.
type ptxOrder struct {
	name  string
	check func(e ptxEvent, state int, seen *int) (int, error)
	least int // how often it must have looked at something in the kernels of lanes, so that one that has lost the addresses fails
}

// ptxEvent is an instruction, as far as it has to do with memory.
type ptxEvent struct {
	*ptxInstruction
	of     thing
	at     int    // in what it is of
	value  string // that is stored, if it is a number
	wave   bool   // the kernel's lanes are waves
	strong bool   // of system scope
}

func (e ptxEvent) loads(of thing) bool { return e.name == "ld" && !e.is("param") && e.of&of != 0 }
func (e ptxEvent) stores(of thing) bool {
	return (e.name == "st" || e.name == "red" || e.name == "atom") && e.of&of != 0
}
func (e ptxEvent) acquires() bool { return e.strong && e.name == "ld" && e.is("acquire") }
func (e ptxEvent) fences() bool {
	return e.op == "fence.acq_rel.sys" || e.op == "fence.sc.sys" || e.op == "membar.sys"
}

// meets is all of a wave at one place, with what each has done before it.
func (e ptxEvent) meets() bool {
	return e.op == "bar.warp.sync" && slices.Equal(e.from, []string{"-1"})
}

// released follows what is stored until it may be shown: met (by a wave), and then fenced by who shows it.
func released(e ptxEvent, state int) int {
	const stored, met = 1, 2
	switch {
	case e.meets() && state == stored:
		return met
	case e.fences() && (state == met || !e.wave):
		return 0
	}
	return state
}

// acquired follows a poll until what it has found may be used: an acquire, which the poll itself may be, and then met (by a wave).
func acquired(e ptxEvent, state int, polled thing) int {
	const found, ordered = 1, 2
	switch {
	case e.loads(polled) && e.acquires() && !e.wave:
		return 0
	case e.loads(polled) && e.acquires():
		return max(state&1, ordered) // an earlier one may not be ordered yet
	case e.loads(polled) && e.strong:
		return found
	case e.fences() && state != 0 && !e.wave:
		return 0
	case e.fences() && state != 0:
		return ordered
	case e.meets() && state == ordered:
		return 0
	}
	return state
}

const (
	sqeOrder     = "SQEs and PRP lists before the SQ doorbell"
	partingOrder = "all of the lane before it is the CPU's"
	parkingOrder = "PARKING before the last look"
)

var ptxOrders = []ptxOrder{
	{"what the CPU or the controller sees is stored strongly", func(e ptxEvent, _ int, seen *int) (int, error) {
		if e.stores(aResult | aStatus | aCounter | aTrace | anSQDoorbell | aCQDoorbell | aControl) {
			*seen++
			if !e.strong {
				return 0, errors.New("a store that need not leave the GPU")
			}
		}
		return 0, nil
	}, 20},
	{"polls go to memory", func(e ptxEvent, _ int, seen *int) (int, error) {
		// Items are read by wide loads, or past their seqs; those come after an acquire: below.
		item := e.of == aWork && (e.is("v4") || e.at%int(unsafe.Sizeof(WorkSlot{})) != 0)
		if e.loads(aCQ|aControl|aWork) && (e.strong || !item) {
			*seen++
			if !e.strong {
				return 0, errors.New("a poll that may find old bytes in a cache")
			}
		}
		return 0, nil
	}, 5},
	{"scopes", func(e ptxEvent, _ int, seen *int) (int, error) {
		// What only threads of the GPU share is one word.
		narrow := e.is("gpu") || e.is("cta") || e.is("cluster") || e.name == "atom" && !e.is("sys")
		switch {
		case e.is("nc") || e.is("param") && e.name != "ld":
			return 0, errors.New("a load from the cache for constants")
		case e.of&aWord != 0:
			*seen++
			if !e.is("gpu") {
				return 0, errors.New("the launch's word is the device's")
			}
		case narrow && e.name != "bar":
			return 0, errors.New("of too narrow a scope")
		}
		return 0, nil
	}, 0},
	{sqeOrder, func(e ptxEvent, state int, seen *int) (int, error) {
		switch {
		case e.stores(anSQ | aPRPList):
			*seen++
			return 1, nil
		case e.stores(anSQDoorbell) && state != 0:
			return 0, errors.New("the SQ doorbell may be rung before the SQE is released")
		}
		return released(e, state), nil
	}, 4},
	{"loads of CQEs before the CQ doorbell", func(e ptxEvent, state int, seen *int) (int, error) {
		// The doorbell's value is computed of polls that are acquires; so a wave need not fence those.
		const loaded, met, polled = 1, 2, 3
		switch {
		case e.loads(aCQ) && !e.acquires():
			*seen++
			return loaded, nil
		case e.loads(aCQ) && e.wave && state == 0:
			return polled, nil
		case e.stores(aCQDoorbell):
			*seen++
			if state != 0 {
				return 0, errors.New("the CQ doorbell may be rung while the controller's entries are still read")
			}
		case e.meets() && state == polled:
			return 0, nil
		case e.meets() && state == loaded:
			return met, nil
		case e.fences() && (state == met || !e.wave):
			return 0, nil
		}
		return state, nil
	}, 2},
	{"DW2 and DW3 before DW0 and DW1", func(e ptxEvent, state int, seen *int) (int, error) {
		switch {
		case e.loads(aCQ) && e.at%16 == 0:
			*seen++
			if state != 0 {
				return 0, errors.New("DW0 and DW1 may be those of the previous pass")
			}
			return state, nil
		case e.loads(aCQ) && e.at%16 != 8: // noPlace is a multiple of 16, so what is not known is taken for DW0
			return 0, errors.New("a load across a CQE's words")
		}
		return acquired(e, state, aCQ), nil
	}, 1},
	{"seqs before items", func(e ptxEvent, state int, seen *int) (int, error) {
		if e.loads(aWork) && !e.strong {
			*seen++
			if state != 0 {
				return 0, errors.New("an item may be read that is not there yet")
			}
		}
		return acquired(e, state, aWork), nil
	}, 1},
	{"the control word before the lane", func(e ptxEvent, state int, seen *int) (int, error) {
		if e.loads(aLane) {
			*seen++
			if state != 0 {
				return 0, errors.New("the lane may be read as it was before lanefs_reset")
			}
		}
		return acquired(e, state, aControl), nil
	}, 1},
	{partingOrder, func(e ptxEvent, state int, seen *int) (int, error) {
		switch {
		case e.stores(^aWord) && !e.strong:
			return 1, nil
		case e.stores(aStatus) && (e.at == statusHeld || e.at == statusState && !slices.Contains([]string{"0", "2", "3", "5"}, e.value)): // not NEW, RUNNING, PARKING, DOZING
			*seen++
			if state != 0 {
				return 0, errors.New("the CPU may take the lane before its state is there")
			}
		}
		return released(e, state), nil
	}, 0},
	{"a failure's details before the results that report it", func(e ptxEvent, state int, seen *int) (int, error) {
		switch {
		case e.stores(aStatus) && e.at == statusBadCID:
			*seen++
			return 1, nil
		case e.stores(aResult) && e.is("u32") && state != 0: // a result's seq, by which it is there
			return 0, errors.New("the CPU may read which completion was wrong before that is there")
		}
		return released(e, state), nil
	}, 1},
	{"CIDs that one thread gives back before another takes them", func(e ptxEvent, state int, seen *int) (int, error) {
		free := (e.loads(aCID) || e.stores(aCID)) && e.is("u16") && e.at%CIDSize == cidFree
		switch {
		case free && e.name == "st" && e.wave:
			*seen++
			return 1, nil
		case free && state != 0:
			return 0, errors.New("a CID may be taken that was given out before")
		case e.meets():
			return 0, nil
		}
		return state, nil
	}, 0},
	{"a CID that is free before another thread looks at it", func(e ptxEvent, state int, seen *int) (int, error) {
		switch {
		case e.wave && e.stores(aCID) && e.at%CIDSize == cidState && e.value == "0": // LANEFS_CID_FREE
			*seen++
			return 1, nil
		case e.loads(aCID) && e.is("v4") && state != 0:
			return 0, errors.New("a CID that has been completed may be taken for one in flight")
		case e.meets():
			return 0, nil
		}
		return state, nil
	}, 0},
	{"all have read the lane before one writes it back", func(e ptxEvent, state int, seen *int) (int, error) {
		switch {
		case e.wave && e.loads(aLane):
			return 1, nil
		case e.wave && e.stores(aLane):
			*seen++
			if state != 0 {
				return 0, errors.New("a thread may read what another has written for the next launch")
			}
		case e.meets():
			return 0, nil
		}
		return state, nil
	}, 0},
	{parkingOrder, func(e ptxEvent, state int, seen *int) (int, error) {
		switch {
		case e.stores(aStatus) && e.at == statusState && e.value == strconv.Itoa(int(StateParking)):
			*seen++
			return 1, nil
		case e.op == "fence.sc.sys":
			return 0, nil
		case e.loads(aWork) && state != 0:
			return 0, errors.New("work may be left behind: the look at the ring may come before PARKING")
		}
		return state, nil
	}, 0},
}

// Where in a lane's status what hands the lane over is.
const (
	statusState  = int(unsafe.Offsetof(Status{}.State))
	statusHeld   = int(unsafe.Offsetof(Status{}.Held))
	cidFree      = int(unsafe.Offsetof(CID{}.Free))
	cidState     = int(unsafe.Offsetof(CID{}.State))
	statusBadCID = int(unsafe.Offsetof(Status{}.BadCid))
)

// checkPTX returns an error for the first thing that is wrong in a kernel, and how much each order has looked at.
func checkPTX(lines []string, kernel string) (map[string]int, error) {
	wave := isWave(kernel)
	all, err := parsePTX(lines)
	if err != nil {
		return nil, err
	}
	values, err := ptxValuesOf(all)
	if err != nil {
		return nil, err
	}
	paths := ptxPathsOf(all, values, wave)
	looked := map[string]int{}
	for _, o := range ptxOrders {
		seen := map[int]int{}
		start := 0
		if kernel == RingKernel && o.name == sqeOrder { // what it is about was stored by others
			start = 1
		}
		err := paths.walk(start, func(in *ptxInstruction, of thing, k *knowledge, state int) (int, error) {
			e := ptxEvent{ptxInstruction: in, of: of, wave: wave,
				strong: in.is("volatile") || in.is("sys") && (in.is("relaxed") || in.is("acquire") || in.is("release"))}
			if of != 0 && of&(of-1) == 0 {
				e.at = values.offset(in, of)
			}
			if in.name == "st" && len(in.from) == 1 {
				e.value = paths.constant(in.from[0])
				for c := range int(StateDozing) + 1 {
					if of == aStatus && paths.truth(k, equal(e.value, strconv.Itoa(c))) == yes {
						e.value = strconv.Itoa(c)
					}
				}
			}
			n := 0
			state, err := o.check(e, state, &n)
			seen[in.line] = n
			return state, err
		})
		if err != nil {
			return looked, fmt.Errorf("%s: %w", o.name, err)
		}
		for _, n := range seen {
			looked[o.name] += n
		}
	}
	return looked, nil
}

// ptxKernels are the kernels in which there is something to order.
var ptxKernels = []string{StepKernel, BatchKernel, ResidentKernel, WaveStepKernel, WaveBatchKernel, WaveResidentKernel, ResetKernel, RingKernel}

func isWave(kernel string) bool { return strings.HasPrefix(kernel, "lanefs_wave_") }

// TestPTXFlow checks every kernel of the PTX that is embedded, in make test every second one: of that for measurements too, with LANEFS_ISA=all all of its kernels.
func TestPTXFlow(t *testing.T) {
	for name, image := range map[string][]byte{"": imageOf(t, "sm_80"), "traced/": tracedImageOf(t, "sm_80.ptx")} {
		kernels := ptxKernels
		if name != "" && os.Getenv("LANEFS_ISA") != "all" {
			kernels = []string{ResidentKernel, WaveResidentKernel}
		}
		for k, kernel := range kernels {
			if os.Getenv("LANEFS_ISA") != "all" && !disktest.Turn(k, 2) {
				continue
			}
			t.Run(name+kernel, func(t *testing.T) {
				t.Parallel()
				looked, err := checkPTX(assembly(t, image, "sm_80", kernel), kernel)
				require.NoError(t, err)
				for _, o := range ptxOrders {
					if kernel != ResetKernel && kernel != RingKernel {
						require.GreaterOrEqual(t, looked[o.name], o.least, "%s: the check has lost the addresses", o.name)
					}
				}
				if strings.Contains(kernel, "resident") {
					require.NotZero(t, looked[partingOrder])
					require.NotZero(t, looked[parkingOrder])
				}
			})
		}
	}
}

// TestPTXCaches: no kernel of any image, those of programs too, reads by the cache for constants, which nothing makes look at memory again.
func TestPTXCaches(t *testing.T) {
	sdk, err := os.ReadFile("../sdk/c/images/sm_80.ptx")
	require.NoError(t, err)
	for name, image := range map[string][]byte{"": imageOf(t, "sm_80"), "traced": tracedImageOf(t, "sm_80.ptx"), "sdk": sdk} {
		require.NotRegexp(t, `\bld(\.\w+)*\.nc\b|\bldu\b|\btex\b`, string(image), name)
	}
}

// ptxMistake is one that can be planted in a kernel's text: a line that matches, replaced.
type ptxMistake struct{ name, line, with string }

var ptxMistakes = []ptxMistake{
	{"a fence left out", `fence\.\w+\.sys;`, ``},
	{"a fence for the GPU only", `fence\.(\w+)\.sys;`, `fence.$1.gpu;`},
	{"a full fence that is none", `fence\.sc\.sys;`, `fence.acq_rel.sys;`},
	{"a wave that does not meet", `bar\.warp\.sync[^;]*;`, ``},
	{"half a wave that meets", `(bar\.warp\.sync\s+)-1;`, `${1}65535;`},
	{"a poll that is no acquire", `ld\.acquire\.sys\.`, `ld.relaxed.sys.`},
	{"an acquire from the GPU only", `ld\.acquire\.sys\.`, `ld.acquire.gpu.`},
	{"a cached poll", `ld\.(acquire\.sys|volatile)\.`, `ld.`},
	{"a poll of constants", `ld\.volatile\.global\.`, `ld.global.nc.`},
	{"a store for the GPU only", `st\.(volatile|relaxed\.sys)\.`, `st.relaxed.gpu.`},
	{"a weak store", `st\.(volatile|relaxed\.sys)\.`, `st.`},
	{"a release that hangs on less", `or\.pred\s+(%p\d+), (%p\d+), (%p\d+);`, `mov.pred $1, $2;`},
	{"a release that hangs on less, otherwise", `or\.pred\s+(%p\d+), (%p\d+), (%p\d+);`, `mov.pred $1, $3;`},
}

// ptxHarmless is how many of a mistake's places in a kernel are of no consequence. A wave meets before it shows results early, each word of which has
// its seq; and twice after PARKING, which the thread stores whose look counts.
var ptxHarmless = map[string]int{WaveStepKernel: 1, WaveBatchKernel: 1, WaveResidentKernel: 3}

// TestPTXFlowFails plants each mistake at each of its places, one at a time, and has the checks find it: in make test at some of the places in
// one of three kernels, with LANEFS_ISA=all at all in all.
func TestPTXFlowFails(t *testing.T) {
	every := os.Getenv("LANEFS_ISA") == "all"
	for _, kernel := range ptxKernels {
		if k := slices.Index([]string{StepKernel, WaveStepKernel, RingKernel}, kernel); !every && (k < 0 || !disktest.Turn(k, 3)) {
			continue
		}
		lines := assembly(t, imageOf(t, "sm_80"), "sm_80", kernel)
		release := len(lines) // of the SQ doorbell
		if kernel != ResetKernel {
			for release = sqDoorbell(t, lines, kernel); !isFence(lines[release]); {
				release--
			}
		}
		for _, m := range ptxMistakes {
			t.Run(kernel+"/"+m.name, func(t *testing.T) {
				t.Parallel()
				re := regexp.MustCompile(m.line)
				var places, missed []int
				for i, line := range lines {
					if re.MatchString(line) && (!strings.HasPrefix(m.line, "or") || release-12 < i && i < release) {
						places = append(places, i)
					}
				}
				harmless := 0
				if strings.Contains(m.line, "bar") {
					harmless = ptxHarmless[kernel]
				}
				for n, i := range places {
					if !every && len(places) > 7 && !disktest.Turn(n, 10) {
						continue
					}
					planted := slices.Clone(lines)
					planted[i] = re.ReplaceAllString(lines[i], m.with)
					require.NotEqual(t, lines[i], planted[i])
					if _, err := checkPTX(planted, kernel); err == nil {
						missed = append(missed, i+1)
					}
				}
				require.Len(t, missed, harmless, "lines %v of %d places", missed, len(places))
			})
		}
		t.Run(kernel+"/a doorbell before the release", func(t *testing.T) {
			if kernel == ResetKernel {
				t.Skip("it rings none")
			}
			planted := slices.Clone(lines)
			doorbell := sqDoorbell(t, planted, kernel)
			line := planted[doorbell]
			planted = slices.Insert(slices.Delete(planted, doorbell, doorbell+1), release, line)
			_, err := checkPTX(planted, kernel)
			require.ErrorContains(t, err, "before the SQE is released")
		})
	}
}

func isFence(line string) bool { return strings.Contains(line, "fence.acq_rel.sys;") }

// sqDoorbell is the line in which a kernel rings the SQ doorbell.
func sqDoorbell(t *testing.T, lines []string, kernel string) int {
	t.Helper()
	all, err := parsePTX(lines)
	require.NoError(t, err)
	values, err := ptxValuesOf(all)
	require.NoError(t, err)
	i := slices.IndexFunc(all, func(in ptxInstruction) bool { return in.name == "st" && values.of[in.base] == anSQDoorbell })
	require.GreaterOrEqual(t, i, 0)
	return all[i].line - 1
}
