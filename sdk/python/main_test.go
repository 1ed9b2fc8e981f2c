package python

import (
	"os"
	"testing"

	"github.com/lanefs/lanefs/fs/share/gate"
)

// TestMain: a share starts this program again, as its gate.
func TestMain(m *testing.M) {
	gate.RunIfChild()
	os.Exit(m.Run())
}
