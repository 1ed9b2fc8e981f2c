package pci

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLVMNames(t *testing.T) {
	for in, want := range map[string][2]string{
		"vg-lv": {"vg", "lv"}, "my--vg-lv": {"my-vg", "lv"}, "vg-a--b": {"vg", "a-b"}, "vg-lv_tdata": {"vg", "lv_tdata"}, "odd": {"odd", ""},
	} {
		group, volume := lvmNames(in)
		require.Equal(t, want, [2]string{group, volume}, in)
	}
}
