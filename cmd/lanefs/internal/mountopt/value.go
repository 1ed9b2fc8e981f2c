package mountopt

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/lanefs/lanefs/gpu/vfio/pci"
)

func number(text string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

// size reads bytes with an optional k, M or G, which stand for powers of 1024.
func size(text string) (int64, bool) {
	shift := 0
	digits := strings.TrimRight(text, "kKmMgG")
	switch strings.ToLower(text[len(digits):]) {
	case "":
	case "k":
		shift = 10
	case "m":
		shift = 20
	case "g":
		shift = 30
	default:
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return 0, false
	}
	return n << shift, true
}

// ParseSize reads a size as options have it: bytes, or k, M or G behind a number for powers of 1024.
func ParseSize(text string) (int64, error) {
	n, ok := size(text)
	if !ok {
		return 0, fmt.Errorf("%q: want a number of bytes, or one with k, M or G behind it", text)
	}
	return n, nil
}

// shortSize writes bytes as size reads them.
func shortSize(n int64) string {
	for _, u := range []struct {
		shift int
		name  string
	}{{30, "G"}, {20, "M"}, {10, "k"}} {
		if n >= 1<<u.shift && n%(1<<u.shift) == 0 {
			return fmt.Sprintf("%d%s", n>>u.shift, u.name)
		}
	}
	return strconv.FormatInt(n, 10)
}

// defaultBAR is the BAR unless one is named: where ivshmem, and most GPUs' first large BAR after their registers, have it.
const defaultBAR = 2

// ParseBAR reads ADDR or ADDR/BAR.
func ParseBAR(text string) (BAR, error) {
	addr, index, given := strings.Cut(text, "/")
	b := BAR{Index: defaultBAR}
	if given {
		n, err := strconv.Atoi(index)
		if err != nil || n < 0 || n > 5 {
			return b, fmt.Errorf("%q is no BAR: want a number from 0 to 5", index)
		}
		b.Index = n
	}
	a, err := pci.ParseAddress(addr)
	b.Function = string(a)
	return b, err
}
