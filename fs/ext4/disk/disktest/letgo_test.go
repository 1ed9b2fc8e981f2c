package disktest

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLetGo: a volume that is listed and has gone meanwhile, as other tests' do, is not told of, and what comes after it runs.
func TestLetGo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a mount namespace")
	}
	out, err := exec.Command("unshare", "--mount", "sh", "-e", "-c", `mount -t tmpfs tmpfs /proc
echo "/dev/loop77 $0/gone ext4 rw 0 0" >/proc/mounts
`+LetGo+`echo ok`, t.TempDir()).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "ok\n", string(out))
}
