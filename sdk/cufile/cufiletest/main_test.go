package cufiletest

import (
	"fmt"
	"os"
	"testing"

	"github.com/lanefs/lanefs/fs/share/gate"
)

// TestMain: a share starts this program again, as its gate.
func TestMain(m *testing.M) {
	gate.RunIfChild()
	os.Exit(tests(m))
}

func tests(m *testing.M) int {
	var err error
	if dest, err = os.MkdirTemp("", "lanefs-cufile-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dest)
	return m.Run()
}
