package share

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/gate"
	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/gpu"
)

// register imports memory of the program, for transfers of rings.
func (c *conn) register(q *wire.Register, rights []gate.Right) result {
	if c.has(memoryKind) >= maxMemories {
		return fail(fmt.Errorf("the connection has registered %d memories: %w", maxMemories, unix.EMFILE))
	}
	if q.Size == 0 || q.Size%4096 != 0 || q.Size > 1<<46 || q.FDOff > 1<<46 {
		return fail(fmt.Errorf("%d bytes of memory at %d: want a multiple of 4096: %w", q.Size, q.FDOff, unix.EINVAL))
	}
	cost, err := c.charge(Usage{Handles: 1, Descriptors: 1, Registered: int64(q.Size)})
	if err != nil {
		return fail(err)
	}
	defer cost.end()
	kind := gpu.ExportKind(q.Kind)
	if rights[0].Sort != gate.Memory {
		return fail(fmt.Errorf("the descriptor is not of memory: %w", unix.EINVAL))
	}
	if err := checkImport(kind, rights[0].FD); err != nil {
		return fail(err)
	}
	if kind == gpu.ExportLegacy && !privileged(c.UID) {
		// The GPU's driver would open for the daemon what it does not for the client.
		return fail(fmt.Errorf("legacy IPC handles are for root and the user that mounted; use a stage: %w", unix.EPERM))
	}
	m, err := c.pool.Import(gpu.Export{FD: rights[0].FD, Offset: int64(q.FDOff), Size: int64(q.Size), Kind: kind}, c.left)
	if err != nil {
		return fail(err)
	}
	n, err := c.freeNumber()
	if err != nil {
		_ = m.Close()
		return fail(err)
	}
	c.add(n, &memory{m, kind == gpu.ExportMemFD && kind != c.pool.Kind()}, cost)
	return result{reply: &wire.RegisterReply{Handle: n}}
}

// checkImport refuses descriptors that could do harm. Touching a page of hugetlbfs may raise SIGBUS. Only memfds have seals, so the file
// system of another file, which may be the client's own and never answer, gets no request.
func checkImport(kind gpu.ExportKind, fd int) error {
	if kind != gpu.ExportMemFD && kind != gpu.ExportIPC && kind != gpu.ExportLegacy {
		return nil
	}
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	var st unix.Statfs_t
	if err == nil {
		err = unix.Fstatfs(fd, &st)
	}
	if err != nil || st.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("the descriptor is not a memfd of ordinary pages: %w", unix.EINVAL)
	}
	return nil
}
