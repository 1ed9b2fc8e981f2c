package fault

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestGuard(t *testing.T) {
	gone, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(gone)) }()
	dst := make([]byte, 4096)
	require.Error(t, Guard(func() { copy(dst, gone) }))
	require.NoError(t, Guard(func() { copy(dst, dst) }))
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = Guard(func() { copy(dst, dst) }) }))
	mine := errors.New("mine")
	require.PanicsWithValue(t, mine, func() { _ = Guard(func() { panic(mine) }) })
	require.Panics(t, func() { _ = Guard(func() { _ = dst[len(gone)] }) }, "an index is no access")
}
