package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/mountopt"
)

// TestDocsOptions: no document names a mount option that does not exist.
func TestDocsOptions(t *testing.T) {
	others := map[string]bool{"iommu": true, "intel_iommu": true, "amd_iommu": true, "fsid": true} // the kernel's, and NFS'
	var docs []string
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/man/*", "../../sdk/*/*.md"} {
		some, err := filepath.Glob(pattern)
		require.NoError(t, err)
		docs = append(docs, some...)
	}
	require.NotEmpty(t, docs)
	known := func(doc, name string) {
		if start, cut := strings.CutSuffix(name, "…"); cut { // "share_…": a few of them
			require.True(t, slices.ContainsFunc(mountopt.All(), func(o *mountopt.Option) bool { return strings.HasPrefix(o.Name, start) }), "%s: %s", doc, name)
			return
		}
		require.True(t, others[name] || mountopt.Find(name) != nil, "%s names the option %q, which does not exist", doc, name)
	}
	for _, doc := range docs {
		text, err := os.ReadFile(doc)
		require.NoError(t, err)
		if !strings.Contains(doc, "/sdk/") { // where it may be an argument in Python
			for _, m := range regexp.MustCompile("`([a-z_-]+)=[^`]*`").FindAllStringSubmatch(string(text), -1) {
				known(doc, m[1])
			}
		}
		for _, line := range regexp.MustCompile("lanefs mount[^`\n]*").FindAllString(string(text), -1) {
			for _, m := range regexp.MustCompile(` -o ([a-z][^ \]]*)`).FindAllStringSubmatch(line, -1) {
				for _, item := range strings.Split(m[1], ",") {
					if name, _, _ := strings.Cut(item, "="); name != "opts" {
						known(doc, name)
					}
				}
			}
		}
	}
}
