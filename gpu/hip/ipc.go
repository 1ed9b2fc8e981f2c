package hip

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/memfd"
)

// ipcMessage is what stands in the memfd of a gpu.ExportIPC, in this machine's byte order: it never leaves the machine.
type ipcMessage struct {
	Magic  uint64
	Bytes  uint64 // of the allocation
	Handle ipcHandle
}

const (
	ipcMagic       = 0x3143504953464c20 // " LFSIPC1"
	ipcMessageSize = 8 + 8 + 32
)

// send puts the message into a new memfd, sealed against changes.
func (m *ipcMessage) send() (fd int, err error) {
	b := binary.NativeEndian.AppendUint64(nil, m.Magic)
	b = binary.NativeEndian.AppendUint64(b, m.Bytes)
	for _, w := range m.Handle.Words {
		b = binary.NativeEndian.AppendUint32(b, w)
	}
	if fd, err = memfd.New("lanefs-ipc"); err != nil {
		return -1, err
	}
	n, err := unix.Pwrite(fd, b, 0)
	if err == nil && n != len(b) {
		err = fmt.Errorf("%d of %d bytes were written", n, len(b))
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// receiveIPC reads a message, in which anything may be written.
func receiveIPC(fd int) (m ipcMessage, err error) {
	var b [ipcMessageSize + 1]byte
	n, err := unix.Pread(fd, b[:], 0)
	if err != nil {
		return m, err
	}
	m.Magic, m.Bytes = binary.NativeEndian.Uint64(b[:]), binary.NativeEndian.Uint64(b[8:])
	if n != ipcMessageSize || m.Magic != ipcMagic || m.Bytes == 0 || m.Bytes > 1<<46 {
		return m, fmt.Errorf("%d bytes that are no IPC handle of LaneFS's", n)
	}
	for i := range m.Handle.Words {
		m.Handle.Words[i] = binary.NativeEndian.Uint32(b[16+4*i:])
	}
	return m, nil
}
