package python

import (
	"os"
	"testing"

	"github.com/lanefs/lanefs/fs/share/gate"
)

// TestMain: a share starts this program again, as its gate.
func TestMain(m *testing.M) {
	gate.RunIfChild()
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}
