package nvme

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStatus(t *testing.T) {
	for _, tc := range []struct {
		s    Status
		want string
	}{
		{0, "Successful Completion (sct 0h sc 00h)"},
		{NewStatus(SCTGeneric, 2, true), "Invalid Field in Command (sct 0h sc 02h, DNR)"},
		{NewStatus(SCTCommand, 0, false), "Completion Queue Invalid (sct 1h sc 00h)"},
		{NewStatus(SCTMedia, 0x81, true) | statusMore, "Unrecovered Read Error (sct 2h sc 81h, More, DNR)"},
		{NewStatus(SCTPath, 1, false), "Asymmetric Access Persistent Loss (sct 3h sc 01h)"},
		{NewStatus(SCTVendor, 1, false), "Vendor Specific Status (sct 7h sc 01h)"},
		{NewStatus(SCTGeneric, 0xc1, false), "Vendor Specific Status (sct 0h sc c1h)"},
		{NewStatus(SCTMedia, 0, false), "Reserved Status (sct 2h sc 00h)"},
	} {
		require.Equal(t, tc.want, tc.s.String())
	}
	require.False(t, NewStatus(SCTCommand, 0, false).OK(), "SC 0 of another type is no success")
	require.True(t, Status(statusMore|statusNoTry).OK())
	require.Equal(t, 2, Status(2<<11).CRD())
	require.True(t, NewStatus(SCTMedia, 0x80, true).Is(StatusWriteFault))
}

func TestStatusError(t *testing.T) {
	s := SQE{Opcode: IORead, NSID: 2, CDW10: 0xfffffff0, CDW11: 1, CDW12: 7 | 1<<30}
	require.NoError(t, s.Err(StatusSuccess, false))
	require.EqualError(t, s.Err(StatusReadError, false),
		"nvme: Read of 8 blocks at LBA 8589934576 of namespace 2: Unrecovered Read Error (sct 2h sc 81h)")
	s = SQE{Opcode: AdminCreateSQ}
	require.EqualError(t, s.Err(StatusInvalidQSize, true), "nvme: Create I/O Submission Queue: Invalid Queue Size (sct 1h sc 02h)")
}

// FuzzStatus: every status has words, and its parts make it up.
func FuzzStatus(f *testing.F) {
	f.Add(uint16(0x4281))
	f.Fuzz(func(t *testing.T, v uint16) {
		s := Status(v & 0x7fff)
		require.NotEmpty(t, s.String())
		require.Equal(t, s.OK(), s.Code() == StatusSuccess)
		require.True(t, s.Is(NewStatus(s.SCT(), s.SC(), !s.DNR())), "DNR is not part of the code")
		require.Equal(t, s, NewStatus(s.SCT(), s.SC(), s.DNR())|Status(s.CRD())<<11|s&statusMore)
		require.NotEmpty(t, s.SCT().String())
		err := (&SQE{Opcode: Opcode(v), NSID: 1}).Err(s, v>>15 == 1)
		require.Equal(t, s.OK(), err == nil)
		require.Equal(t, !s.OK(), Refused(err))
	})
}
