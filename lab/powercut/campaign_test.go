package powercut

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/lab/internal/drive"
	"github.com/lanefs/lanefs/lab/internal/image"
)

// busy is how long a campaign may take that has not come to what it must have tried, on a busy machine.
const busy = 10 * time.Minute

// TestCampaign is a short campaign: each layout with the same seed every time and with a fresh one, of which make test takes one. A long one is make crash-test.
func TestCampaign(t *testing.T) {
	disktest.Tool(t, "mkfs.ext4", "dumpe2fs", "e2fsck")
	why := image.KernelMissing()
	c := Campaign{Fresh: disktest.FreshSeed(), Time: 25 * time.Second, Cuts: 12, Ops: 150, Full: 0.15, Recuts: 1,
		Kernel: why == "", Dir: drive.Memory(), Keep: filepath.Join("..", "..", "build", "crash"), Logf: t.Logf}
	for i := range Layouts {
		seed := c.Fresh + uint64(i)
		if disktest.Turn(i, 2) {
			seed = uint64(i + 1)
		}
		c.Seeds = append(c.Seeds, seed)
	}
	if c.Runs = len(Layouts); !disktest.InTurn() {
		c.Runs, c.Time = 2*c.Runs, busy
	}
	if testing.Short() {
		c.Time = 5 * time.Second
	}
	t.Logf("fresh seeds from %d", c.Fresh)
	s, err := c.Run()
	for err == nil && len(s.Failures) == 0 && (s.Cuts == 0 || c.Kernel && s.Kernel == 0 && !testing.Short()) && c.Time < busy {
		c.Time *= 2
		s, err = c.Run()
	}
	require.NoError(t, err)
	t.Log(s)
	for i := range s.Failures {
		t.Errorf("%v", &s.Failures[i])
	}
	require.NotZero(t, s.Cuts, "no cut was tried")
	t.Run("kernel", func(t *testing.T) {
		if why != "" {
			t.Skipf("SKIPPED: the kernel's recovery of cut volumes: %s", why)
		}
		require.True(t, testing.Short() || s.Kernel > 0, "the kernel recovered none")
	})
}
