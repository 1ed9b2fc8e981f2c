package controller

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// deaf is a Transport that takes doorbells.
type deaf struct{ Transport }

func (deaf) Write32(int64, uint32) {}

// TestEventCIDs: a controller completes event requests in any order, and may hold one for ever. No other request has its CID meanwhile,
// and a completion that names none that is outstanding is no event.
func TestEventCIDs(t *testing.T) {
	c := &Controller{t: deaf{}, log: slog.New(slog.DiscardHandler), ident: &nvme.IdentifyController{AERL: 3}}
	q := &adminQueue{c: c, sq: make([]byte, adminEntries*nvme.SQESize)}
	c.aq = q
	posted := 0
	outstanding := map[uint16]bool{}
	arm := func() {
		c.armEventsLocked()
		for ; posted != q.tail; posted = (posted + 1) % adminEntries {
			e, err := nvme.DecodeSQE(q.sq[posted*nvme.SQESize : (posted+1)*nvme.SQESize])
			require.NoError(t, err)
			require.False(t, outstanding[e.CID], "CID %#x is in use", e.CID)
			require.GreaterOrEqual(t, e.CID, uint16(aerCID))
			outstanding[e.CID] = true
		}
		require.Len(t, outstanding, maxEvents)
	}
	arm()
	for i := range 1000 {
		ended := aerCID + uint16(i*i%(maxEvents-1)) // one of them never ends
		require.True(t, q.event(nvme.CQE{CID: ended}))
		require.False(t, q.event(nvme.CQE{CID: ended}), "it has ended")
		delete(outstanding, ended)
		arm()
	}
	require.False(t, q.event(nvme.CQE{CID: aerCID + maxEvents}))
	require.False(t, q.event(nvme.CQE{CID: 7}))
}
