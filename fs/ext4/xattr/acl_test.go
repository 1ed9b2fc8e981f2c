package xattr

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestACL(t *testing.T) {
	a, err := ParseACL(testACL.Xattr())
	require.NoError(t, err)
	require.Equal(t, testACL, a)
	a, err = DecodeACL(testACL.Encode())
	require.NoError(t, err)
	require.Equal(t, testACL, a)
	a, err = ParseACL([]byte{2, 0, 0, 0})
	require.NoError(t, err)
	require.Nil(t, a)

	bits, all := testACL.Mode()
	require.EqualValues(t, 0o770, bits)
	require.False(t, all)
	bits, _ = testACL.Chmod(0o654).Mode()
	require.EqualValues(t, 0o654, bits)
	require.EqualValues(t, 4, *testACL.Chmod(0o654).perm(TagGroupObj), "a mask shields the group object")

	inherited, mode := testACL.Inherit(0o100666)
	require.EqualValues(t, 0o100660, mode)
	require.EqualValues(t, 6, *inherited.perm(TagMask))
	minimal := ACL{{TagUserObj, 7, 0}, {TagGroupObj, 5, 0}, {TagOther, 0, 0}}
	inherited, mode = minimal.Inherit(0o777)
	require.Nil(t, inherited)
	require.EqualValues(t, 0o750, mode)
}

func TestACLRefusals(t *testing.T) {
	for _, a := range []ACL{
		{{TagUserObj, 7, 0}},
		{{TagUserObj, 7, 0}, {TagGroupObj, 7, 0}, {TagOther, 8, 0}},
		{{TagGroupObj, 7, 0}, {TagUserObj, 7, 0}, {TagOther, 7, 0}},
		{{TagUserObj, 7, 0}, {TagUser, 7, 5}, {TagGroupObj, 7, 0}, {TagOther, 7, 0}},
		{{TagUserObj, 7, 0}, {TagUser, 7, aclNoID}, {TagGroupObj, 7, 0}, {TagMask, 7, 0}, {TagOther, 7, 0}},
		{{TagUserObj, 7, 0}, {TagUserObj, 7, 0}, {TagGroupObj, 7, 0}, {TagOther, 7, 0}},
		{{TagUserObj, 7, 0}, {TagGroupObj, 7, 0}, {TagOther, 7, 0}, {0x40, 7, 0}},
		{{0, 7, 0}, {TagUserObj, 7, 0}, {TagGroupObj, 7, 0}, {TagOther, 7, 0}},
	} {
		_, err := DecodeACL(a.Encode())
		require.Error(t, err, "%v", a)
		_, err = ParseACL(a.Xattr())
		require.Error(t, err, "%v", a)
	}
	for _, b := range [][]byte{nil, {1, 0, 0}, {2, 0, 0, 0}, append(testACL.Encode(), 1, 2), testACL.Encode()[:14]} {
		_, err := DecodeACL(b)
		require.Error(t, err, "%v", b)
	}
	none, err := DecodeACL(ACL{}.Encode())
	require.NoError(t, err)
	require.Nil(t, none)
	_, err = ParseACL(testACL.Xattr()[:11])
	require.Error(t, err)
}
