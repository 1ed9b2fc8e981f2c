package ctest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/share/sharetest"
)

// TestMPI: two ranks read a file once by lanefs_mpi.h, over UCX's shared memory and over TCP on the loopback.
func TestMPI(t *testing.T) {
	for _, tool := range []string{"mpicc", "mpirun", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: apt-get install --no-install-recommends openmpi-bin libopenmpi-dev", tool)
		}
	}
	content := make([]byte, 2*mib+4321)
	for i := range content {
		content[i] = byte(i % 251)
	}
	program := filepath.Join(t.TempDir(), "testmpi")
	run(t, "mpicc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I..", "-o", program, filepath.Join("..", "testmpi.c"), filepath.Join(library(t), "liblanefs.a"), "-pthread", "-ldl")
	for _, c := range []struct{ name, transports string }{{"shared memory", "posix,self"}, {"TCP", "tcp,self"}} {
		t.Run(c.name, func(t *testing.T) {
			m := sharetest.New(t, 64*mib, 32*mib)
			f := m.Write("file", content)
			file := f.Name()
			require.NoError(t, f.Close())
			// The limit is mpirun's own: it ends the ranks with itself.
			cmd := exec.Command("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "--timeout", "120", "-np", "2", "--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any", "--mca", "osc", "^ucx",
				"-x", "UCX_TLS="+c.transports, "-x", "UCX_NET_DEVICES=all", program, file)
			cmd.Env = append(os.Environ(), "OMPI_MCA_plm=isolated", "OMPI_MCA_btl=^openib", "UCX_WARN_UNUSED_ENV_VARS=n", "TMPDIR="+t.TempDir())
			cmd.WaitDelay = time.Minute
			p := sharetest.Start(t, cmd)
			require.Equal(t, "ok, 2 ranks", p.Says())
			m.Close() // while they read
			require.Equal(t, "gone", p.Says())
			require.NoError(t, p.Wait())
		})
	}
}
