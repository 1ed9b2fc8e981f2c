// Package smaps says, for tests, how this process has its memory mapped: proc_pid_smaps(5). It tells whether the kernel was asked for huge pages, and how much of a file the processor
// reaches by them.
package smaps

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Mapping is one, with what the kernel says of it by name.
type Mapping struct {
	From, To uintptr
	Path     string
	said     map[string]string
}

// All returns the mappings of this process.
func All(t testing.TB) (all []Mapping) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		var m Mapping
		if n, _ := fmt.Sscanf(line, "%x-%x ", &m.From, &m.To); n == 2 {
			if f := strings.Fields(line); len(f) > 5 {
				m.Path = strings.Join(f[5:], " ")
			}
			m.said = map[string]string{}
			all = append(all, m)
		} else if name, value, ok := strings.Cut(line, ":"); ok {
			all[len(all)-1].said[name] = strings.TrimSpace(value)
		}
	}
	return all
}

// At returns the mapping that an address is in.
func At(t testing.TB, addr uintptr) Mapping {
	t.Helper()
	for _, m := range All(t) {
		if m.From <= addr && addr < m.To {
			return m
		}
	}
	t.Fatalf("nothing is mapped at %#x", addr)
	return Mapping{}
}

// Flags are those of VmFlags.
func (m Mapping) Flags() []string { return strings.Fields(m.said["VmFlags"]) }

// Huge is how many bytes of a file the processor reaches by huge pages.
func (m Mapping) Huge(t testing.TB) (bytes int64) {
	t.Helper()
	for _, name := range []string{"ShmemPmdMapped", "FilePmdMapped"} {
		if value, ok := m.said[name]; ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(value, " kB"), 10, 64)
			require.NoError(t, err)
			bytes += n << 10
		}
	}
	return bytes
}
