package gate

import (
	"encoding/binary"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// The gate sends a client's message to the daemon behind a head, which describes the descriptors that the client passed. Gate and daemon
// are the same executable, so the format is private to this package:
//
//	1 byte the number of rights, 1 byte the length of the name
//	24 bytes for each right: 4 sort, 4 flags, 8 inode, 4 mode, 4 zero
//	the name
//	the client's message

const (
	rightSize = 24
	maxName   = 255
	maxHead   = 2 + (wire.MaxRights+1)*rightSize + maxName
)

// Sort is the kind of object that a client's descriptor refers to.
type Sort uint32

const (
	Foreign Sort = iota // anything else; the gate has kept and closed it
	Memory              // a memfd or device memory, in FD
	Own                 // a file of the mount; the gate keeps it open until the reply
)

// Right is a descriptor that a client passed.
type Right struct {
	Sort  Sort
	FD    int    // of Memory, closed by the receiver; else -1
	Flags int    // of Own: F_GETFL
	Inode uint64 // of Own
	Mode  uint32 // of Own: st_mode
	Name  string // of the first Own: its path, for logs
}

// CloseAll closes the descriptors of rights.
func CloseAll(rights []Right) {
	for i := range rights {
		wire.CloseAll([]int{rights[i].FD})
		rights[i].FD = -1
	}
}

// encodeHead encodes the head. It has room for one right more than a message may carry.
func encodeHead(rights []Right) []byte {
	name := ""
	b := make([]byte, 2, maxHead)
	b[0] = byte(len(rights))
	le := binary.LittleEndian
	for _, r := range rights {
		b = le.AppendUint32(b, uint32(r.Sort))
		b = le.AppendUint32(b, uint32(r.Flags))
		b = le.AppendUint64(b, r.Inode)
		b = le.AppendUint32(b, r.Mode)
		b = le.AppendUint32(b, 0)
		if name == "" {
			name = r.Name
		}
	}
	name = name[:min(len(name), maxName)]
	b[1] = byte(len(name))
	return append(b, name...)
}

// decodeHead is the inverse of encodeHead. fds are the descriptors that came with the message.
func decodeHead(b []byte, fds []int) (rights []Right, message []byte, err error) {
	bad := fmt.Errorf("a message of the gate's of %d bytes and %d descriptors", len(b), len(fds))
	if len(b) < 2 || int(b[0]) > wire.MaxRights+1 || len(b) < 2+int(b[0])*rightSize+int(b[1]) {
		return nil, nil, bad
	}
	le := binary.LittleEndian
	at := b[2:]
	for range b[0] {
		r := Right{Sort: Sort(le.Uint32(at)), FD: -1, Flags: int(le.Uint32(at[4:])), Inode: le.Uint64(at[8:]), Mode: le.Uint32(at[16:])}
		if r.Sort == Memory {
			if len(fds) == 0 {
				return nil, nil, bad
			}
			r.FD, fds = fds[0], fds[1:]
		}
		rights, at = append(rights, r), at[rightSize:]
	}
	if len(fds) != 0 {
		return nil, nil, bad
	}
	name := string(at[:b[1]])
	for i := range rights {
		if rights[i].Sort == Own {
			rights[i].Name = name
			break
		}
	}
	return rights, at[b[1]:], nil
}

// Conn is the daemon's connection to a client. Replies are sent as to the client itself.
type Conn struct {
	*wire.Conn
	UID uint32
	in  [maxHead + wire.MaxMessage + 1]byte
	oob [128]byte
}

// Receive waits for a request. The body is valid until the next call. Without an error the caller must close the rights.
func (c *Conn) Receive() (h wire.Header, body []byte, rights []Right, err error) {
	n, oobn, flags, _, err := c.ReadMsgUnix(c.in[:], c.oob[:])
	if err != nil {
		return h, nil, nil, err
	}
	fds, err := wire.ParseRights(c.oob[:oobn])
	if err == nil && n == 0 {
		err = net.ErrClosed
	}
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = fmt.Errorf("descriptors were lost on the way from the gate: %w", unix.EMFILE)
	}
	var message []byte
	if err == nil {
		rights, message, err = decodeHead(c.in[:n], fds)
	}
	if err == nil && (flags&unix.MSG_TRUNC != 0 || len(message) > wire.MaxMessage) {
		err = fmt.Errorf("%w: more than %d bytes", wire.ErrMalformed, wire.MaxMessage)
	}
	if err == nil && len(rights) > wire.MaxRights {
		err = fmt.Errorf("%w: more than %d descriptors", wire.ErrMalformed, wire.MaxRights)
	}
	if err == nil {
		h, body, err = wire.Decode(message)
	}
	if err != nil {
		wire.CloseAll(fds)
		return h, nil, nil, err
	}
	return h, body, rights, nil
}
