package pci

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBetween builds two root complexes: one with a switch that has two functions below it, and a function on its own.
func TestBetween(t *testing.T) {
	root := t.TempDir()
	at := map[string]string{
		"0000:03:00.0": "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0",
		"0000:04:00.0": "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0",
		"0000:05:00.0": "pci0000:00/0000:00:02.0/0000:05:00.0",
		"0000:00:03.0": "pci0000:00/0000:00:03.0",
		"0000:81:00.0": "pci0000:80/0000:80:01.0/0000:81:00.0",
	}
	functions := map[string]*Function{}
	bus := filepath.Join(root, "sys/bus/pci/devices")
	require.NoError(t, os.MkdirAll(bus, 0o755))
	for addr, dir := range at {
		require.NoError(t, os.MkdirAll(filepath.Join(root, "sys/devices", dir), 0o755))
		require.NoError(t, os.Symlink("../../../devices/"+dir, filepath.Join(bus, addr)))
		functions[addr] = &Function{Addr: Address(addr), sys: System{Root: root}}
	}
	for _, c := range []struct {
		a, b string
		want Route
	}{
		{"0000:03:00.0", "0000:04:00.0", Route{true, "0000:01:00.0", 3}}, // down port, up port, down port
		{"0000:03:00.0", "0000:05:00.0", Route{true, "", 4}},
		{"0000:00:03.0", "0000:05:00.0", Route{true, "", 1}},
		{"0000:00:03.0", "0000:00:03.0", Route{true, "", 0}},
		{"0000:03:00.0", "0000:81:00.0", Route{false, "", 4}},
	} {
		require.Equal(t, c.want, Between(functions[c.a], functions[c.b]), "%s and %s", c.a, c.b)
		require.Equal(t, c.want, Between(functions[c.b], functions[c.a]), "%s and %s", c.b, c.a)
	}
}
