package hip

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The flush is a store to the register that HSA names for memory, and to no other.
func TestHDPFlush(t *testing.T) {
	var registers [2]uint32
	f := hdpFlush{Mem: &registers[0], Reg: &registers[1]}
	require.NoError(t, f.flush())
	require.Equal(t, [2]uint32{1, 0}, registers)
}
