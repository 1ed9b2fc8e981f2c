package lanefs_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/share/gate"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// The test binary is a second process too.
const beChild = "LANEFS_TEST_CHILD"

func TestMain(m *testing.M) {
	gate.RunIfChild()
	if what := os.Getenv(beChild); what != "" {
		if err := children[what](os.Args[1]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// child starts one; the function reads a line of what it says.
func child(t *testing.T, what, path string) (*exec.Cmd, func() string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, path)
	cmd.Env = append(os.Environ(), beChild+"="+what)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	r := bufio.NewReader(out)
	return cmd, func() string { line, _ := r.ReadString('\n'); return line }
}

// children are what it may be, with the path of a file.
var children = map[string]func(path string) error{"hold": holds, "stopped": stopped, "crowded": crowded}

func holds(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	s, err := lanefs.Connect(f)
	if err != nil {
		return err
	}
	if _, err := s.Map(f, 0, 0); err != nil {
		return err
	}
	fmt.Println("held")
	time.Sleep(time.Hour)
	return nil
}
