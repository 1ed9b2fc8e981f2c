package softctl

import (
	"bytes"
	"os"
	"strconv"
	"sync/atomic"
	"time"
)

// pressure says whether threads have to wait for a CPU here, as the kernel counts it (PSI, Documentation/accounting/psi.rst).
type pressure struct {
	path   string
	looked atomic.Int64 // when, on the process's clock
	total  atomic.Int64 // microseconds in which some thread waited, until then; -1: not known
	low    atomic.Bool
}

// cpuPressure is of the whole machine. Where the kernel does not count, it is not low.
var cpuPressure = newPressure("/proc/pressure/cpu")

const (
	pressureEvery = 50 * time.Millisecond // to look takes 20 µs
	pressureLow   = 4                     // some thread waits for less than one part of so many. It is a twelfth where nothing but one caller and a loop device work, and half beside a program on each CPU
)

var pressureBegan = time.Now()

func newPressure(path string) *pressure {
	p := &pressure{path: path}
	p.looked.Store(int64(-pressureEvery))
	p.total.Store(-1)
	return p
}

// isLow says that a thread that is woken has a CPU at once, as a rule.
func (p *pressure) isLow() bool {
	now := int64(time.Since(pressureBegan))
	if last := p.looked.Load(); now-last >= int64(pressureEvery) && p.looked.CompareAndSwap(last, now) {
		p.look(time.Duration(now - last))
	}
	return p.low.Load()
}

// look asks the kernel, after the given time.
func (p *pressure) look(after time.Duration) {
	b, err := os.ReadFile(p.path)
	total := int64(-1)
	if err == nil {
		total = someTotal(b)
	}
	was := p.total.Swap(total)
	p.low.Store(total >= 0 && was >= 0 && time.Duration(total-was)*time.Microsecond < after/pressureLow)
}

// someTotal is the total of the line "some", in microseconds; -1 if there is none.
func someTotal(b []byte) int64 {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	rest, ok := bytes.CutPrefix(line, []byte("some "))
	_, total, _ := bytes.Cut(rest, []byte("total="))
	n, err := strconv.ParseUint(string(total), 10, 63)
	if !ok || err != nil {
		return -1
	}
	return int64(n)
}
