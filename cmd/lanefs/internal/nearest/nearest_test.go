package nearest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	names := []string{"mount", "umount", "stat", "ls", "pin", "unpin"}
	for typed, want := range map[string]string{"mout": "mount", "MOUNT": "mount", "unmount": "umount", "stta": "stat", "pn": "pin", "frobnicate": "", "": "", "x": "",
		strings.Repeat("mount", 100): ""} {
		require.Equal(t, want, Of(typed, names), typed)
	}
}
