package nvme

import (
	"encoding/binary"
	"fmt"
)

// DecodeNSList reads a namespace list (Base §4.5.2): ascending NSIDs, ended by zero or by the structure. A full list
// may have a successor, which starts above its last NSID.
func DecodeNSList(b []byte) ([]uint32, error) {
	if len(b) != IdentifySize {
		return nil, fmt.Errorf("nvme: namespace list of %d bytes, want %d", len(b), IdentifySize)
	}
	var ids []uint32
	for i := 0; i < IdentifySize; i += 4 {
		id := binary.LittleEndian.Uint32(b[i:])
		if id == 0 {
			break
		}
		// The order is what ends the walk over lists: a list that goes back would never end.
		if len(ids) > 0 && id <= ids[len(ids)-1] {
			return nil, fmt.Errorf("the namespace list goes from NSID %d back to %d", ids[len(ids)-1], id)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// NSDescriptors is the namespace identification descriptor list (Base §5.17.2.3). Absent identifiers are all zero.
type NSDescriptors struct {
	EUI64 [8]byte
	NGUID [16]byte
	UUID  [16]byte
	CSI   CSI
}

// Namespace identifier types, NIDT.
const (
	nidtEUI64 = 1
	nidtNGUID = 2
	nidtUUID  = 3
	nidtCSI   = 4
)

// DecodeNSDescriptors reads the list from exactly IdentifySize bytes. Types that it does not know are skipped.
func DecodeNSDescriptors(b []byte) (NSDescriptors, error) {
	var d NSDescriptors
	if len(b) != IdentifySize {
		return d, fmt.Errorf("nvme: namespace descriptor list of %d bytes, want %d", len(b), IdentifySize)
	}
	for len(b) >= 4 && b[0] != 0 {
		nidt, nidl := b[0], int(b[1])
		if nidl == 0 || 4+nidl > len(b) {
			return d, fmt.Errorf("a namespace descriptor of type %d has length %d", nidt, nidl)
		}
		nid := b[4 : 4+nidl]
		var into []byte
		csi := []byte{0}
		switch nidt {
		case nidtEUI64:
			into = d.EUI64[:]
		case nidtNGUID:
			into = d.NGUID[:]
		case nidtUUID:
			into = d.UUID[:]
		case nidtCSI:
			into = csi
		}
		if into != nil && len(into) != nidl {
			return d, fmt.Errorf("a namespace descriptor of type %d has length %d, want %d", nidt, nidl, len(into))
		}
		copy(into, nid)
		if nidt == nidtCSI {
			d.CSI = CSI(csi[0])
		}
		b = b[4+nidl:]
	}
	return d, nil
}
