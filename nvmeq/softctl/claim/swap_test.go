package claim

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSwap: swap space is refused by name, with its remedy: a device, the file of it, and a file that the kernel lets anybody open.
func TestSwap(t *testing.T) {
	swapon := func(path string) (off func()) {
		out, err := exec.Command("mkswap", path).CombinedOutput()
		if err != nil {
			t.Skipf("needs mkswap: %v: %s", err, out)
		}
		if out, err = exec.Command("swapon", path).CombinedOutput(); err != nil {
			t.Skipf("needs root, and a kernel with swap space: %s", out)
		}
		off = func() { _ = exec.Command("swapoff", path).Run() }
		t.Cleanup(off)
		return off
	}
	image := filepath.Join(t.TempDir(), "an image")
	require.NoError(t, os.WriteFile(image, make([]byte, 1<<20), 0o600))
	dev, detach := attach(t, image)
	off := swapon(dev)
	for _, path := range []string{dev, image} {
		refused(t, path, true, "as swap space; swapoff "+dev+" first")
		refused(t, path, false, "as swap space; swapoff "+dev+" first")
	}
	off()
	granted(t, dev, true)()
	detach()

	off = swapon(image)
	refused(t, image, true, "as swap space; swapoff "+image+" first")
	refused(t, image, false, "as swap space")
	dev, _ = attach(t, image)
	refused(t, dev, true, "as swap space; swapoff "+image+" first")
	off()
	granted(t, dev, true)()
}

func TestSwaps(t *testing.T) {
	require.Empty(t, swaps(""))
	require.Equal(t, []string{"/dev/sda2", "/var/a swap \\ \"x\""}, swaps("Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/dev/sda2                               partition\t8\t\t0\t\t-2\n/var/a\\040swap\\040\\134\\040\"x\"  file\t\t8\t\t0\t\t-3\n"))
}
