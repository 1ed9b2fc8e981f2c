package docs

import (
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4"
)

// TestFeatureTable holds COMPAT.md's table against what fs/ext4 does.
func TestFeatureTable(t *testing.T) {
	text, err := os.ReadFile("COMPAT.md")
	require.NoError(t, err)
	var documented []string
	for _, m := range regexp.MustCompile(`(?m)^\| (compat|incompat|ro_compat) \| (\S+) \| (0x[0-9a-f]+) \| (\S+) \|$`).FindAllStringSubmatch(string(text), -1) {
		documented = append(documented, m[1]+" "+m[2]+" "+m[3]+" "+m[4])
	}
	var real []string
	for _, f := range ext4.AllFeatures() {
		real = append(real, fmt.Sprintf("%s %s %#x %s", f.Word, f.Name, f.Flag, f.Support))
	}
	require.Equal(t, real, documented)
}
