package contents

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// heldNodes is treeNodes for reading, which keeps the nodes that it gave until release: the next extent is mostly in the same leaf, and
// looking that up in the cache takes locks that all readers share. While it waits for another node it keeps none that is not on the way there,
// so that it holds no more of the cache then than treeNodes would.
type heldNodes struct {
	treeNodes
	held [heldMost]heldNode
}

// heldMost is more than a tree is deep.
const heldMost = 6

// heldNode is an extent.Node that stays when it is Put.
type heldNode struct {
	*jbd2.Buffer     // nil: none
	used         int // how often it was given, and not Put
}

func (h *heldNode) Put() { h.used-- }

func (n *heldNodes) Get(b disk.Block) (extent.Node, error) {
	var free *heldNode
	for k := range n.held {
		h := &n.held[k]
		if h.Buffer != nil && h.Block() == b {
			h.used++
			return h, nil
		}
	}
	for k := range n.held {
		h := &n.held[k]
		h.drop()
		if h.Buffer == nil {
			free = h
		}
	}
	buf, err := n.i.ReadOwn(b)
	if err != nil {
		return nil, err
	}
	if free == nil {
		return buf, nil
	}
	*free = heldNode{buf, 1}
	return free, nil
}

// drop gives a node back that nobody uses.
func (h *heldNode) drop() {
	if h.Buffer != nil && h.used == 0 {
		h.Buffer.Put()
		h.Buffer = nil
	}
}

// release gives all nodes back. All were Put.
func (n *heldNodes) release() {
	for k := range n.held {
		n.held[k].drop()
	}
}
