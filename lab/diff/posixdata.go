package diff

import (
	"bytes"
	"fmt"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"
)

const pageSize = 4096

// aligned is a buffer that O_DIRECT takes.
func aligned(n int64) []byte {
	b := make([]byte, n+pageSize)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (pageSize - 1)
	return b[skip : skip+int(n) : skip+int(n)]
}

func filled(o *Op) []byte {
	b := aligned(o.Len)
	Fill(b, o.Seed, o.Off)
	return b
}

func (p *posix) read(o *Op, r *Result) {
	b := aligned(o.Len)
	n, err := unix.Read(p.fd(o.FD), b)
	r.put(n, err)
	r.Data = b[:max(n, 0)]
}

// write writes at the file's own position, or at its end with O_APPEND.
func (p *posix) write(o *Op, r *Result) {
	n, err := unix.Write(p.fd(o.FD), filled(o))
	r.put(n, err)
}

func (p *posix) pread(o *Op, r *Result) {
	b := aligned(o.Len)
	n, err := unix.Pread(p.fd(o.FD), b, o.Off)
	r.put(n, err)
	r.Data = b[:max(n, 0)]
}

func (p *posix) pwrite(o *Op, r *Result) {
	n, err := unix.Pwrite(p.fd(o.FD), filled(o), o.Off)
	r.put(n, err)
}

// pwritev cuts the bytes of a pwrite into uneven pieces.
func (p *posix) pwritev(o *Op, r *Result) {
	b := filled(o)
	var iov [][]byte
	for k := 1; len(b) > 0; k = k*3 + 1 {
		n := min(k, len(b))
		iov, b = append(iov, b[:n]), b[n:]
	}
	n, err := unix.Pwritev(p.fd(o.FD), iov, o.Off)
	r.put(n, err)
}

// mapped maps the pages of the file in [o.Off, o.Off+o.Len) and calls f with the bytes up to the file's end. A range behind
// the end is not mapped: an access would raise SIGBUS.
func (p *posix) mapped(o *Op, prot int, r *Result, f func(m []byte, pos int64)) {
	var st unix.Stat_t
	if err := unix.Fstat(p.fd(o.FD), &st); err != nil {
		r.put(0, err)
		return
	}
	end := min(o.Off+o.Len, st.Size)
	if st.Mode&unix.S_IFMT == unix.S_IFREG && end <= o.Off {
		return
	}
	start := o.Off &^ (pageSize - 1)
	m, err := unix.Mmap(p.fd(o.FD), start, int(max(end-start, 1)), prot, unix.MAP_SHARED)
	if err != nil {
		r.put(0, err)
		return
	}
	defer unix.Munmap(m)
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if e := recover(); e != nil {
			r.Note = fmt.Sprintf("mmap of bytes %d to %d of %d: %v", o.Off, end, st.Size, e)
		}
	}()
	f(m[o.Off-start:end-start], o.Off)
	r.Ret = end - o.Off
}

func (p *posix) mmapRead(o *Op, r *Result) {
	p.mapped(o, unix.PROT_READ, r, func(m []byte, _ int64) { r.Data = bytes.Clone(m) })
}

// mmapWrite writes through a shared mapping, and with o.Flags calls msync.
func (p *posix) mmapWrite(o *Op, r *Result) {
	p.mapped(o, unix.PROT_READ|unix.PROT_WRITE, r, func(m []byte, pos int64) {
		Fill(m, o.Seed, pos)
		if o.Flags != 0 {
			whole := unsafe.Slice((*byte)(unsafe.Pointer(uintptr(unsafe.Pointer(&m[0]))&^(pageSize-1))), len(m)+int(pos&(pageSize-1)))
			if err := unix.Msync(whole, unix.MS_SYNC); err != nil {
				r.Note = "msync: " + err.Error()
			}
		}
	})
}

// lseek moves the position: o.Flags is whence. SEEK_DATA and SEEK_HOLE are seekMap's.
func (p *posix) lseek(o *Op, r *Result) {
	n, err := unix.Seek(p.fd(o.FD), o.Off, o.Flags)
	r.Errno = errno(err)
	if err == nil {
		r.Ret = n
	}
}

// seekMap walks the data and holes of a file. The file system chooses where they begin; but what lies between data must read
// as zeroes, and the walk must come to the end of the file. The file's position stays.
func (p *posix) seekMap(o *Op, r *Result) {
	fd := p.fd(o.FD)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		r.Errno = errno(err)
		return
	}
	pos, err := unix.Seek(fd, 0, unix.SEEK_CUR)
	if err != nil {
		r.put(0, err)
		return
	}
	defer unix.Seek(fd, pos, unix.SEEK_SET)
	if _, err := unix.Seek(fd, st.Size, unix.SEEK_DATA); err != unix.ENXIO {
		r.Note = fmt.Sprintf("SEEK_DATA at the end of the file: %v", err)
	}
	if _, err := unix.Seek(fd, st.Size, unix.SEEK_HOLE); err != unix.ENXIO {
		r.Note = fmt.Sprintf("SEEK_HOLE at the end of the file: %v", err)
	}
	r.Note += seekWalk(fd, o.Off, st.Size)
}

// seekWalk is seekMap's walk from off. It returns what is wrong, or "".
func seekWalk(fd int, off, size int64) string {
	for steps := 0; off < size; steps++ {
		if steps > 100_000 {
			return "SEEK_DATA and SEEK_HOLE do not come to an end"
		}
		data, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if err == unix.ENXIO {
			data = size
		} else if err != nil {
			return fmt.Sprintf("SEEK_DATA at %d of %d: %v", off, size, err)
		}
		if data < off || data > size {
			return fmt.Sprintf("SEEK_DATA at %d of %d: %d", off, size, data)
		}
		if s := zeroes(fd, off, data); s != "" {
			return fmt.Sprintf("SEEK_DATA at %d skipped to %d, but %s", off, data, s)
		}
		if data == size {
			return ""
		}
		hole, err := unix.Seek(fd, data, unix.SEEK_HOLE)
		if err != nil || hole <= data || hole > size {
			return fmt.Sprintf("SEEK_HOLE in the data at %d of %d: %d, %v", data, size, hole, err)
		}
		off = hole
	}
	return ""
}

// zeroes checks that a file open for reading holds zeroes in [from, to).
func zeroes(fd int, from, to int64) string {
	b := aligned(64 << 10)
	for from < to {
		n, err := unix.Pread(fd, b[:min(int64(len(b)), to-from)], from)
		if err == unix.EBADF || err == unix.EINVAL {
			return "" // not open for reading, or unaligned for O_DIRECT
		}
		if err != nil || n == 0 {
			return fmt.Sprintf("a read at %d gives %d bytes, %v", from, n, err)
		}
		for i, c := range b[:n] {
			if c != 0 {
				return fmt.Sprintf("byte %d is %#x", from+int64(i), c)
			}
		}
		from += int64(n)
	}
	return ""
}

func (p *posix) ftruncate(o *Op, r *Result) { r.put(0, unix.Ftruncate(p.fd(o.FD), o.Len)) }
func (p *posix) truncate(o *Op, r *Result)  { r.put(0, unix.Truncate(o.Path, o.Len)) }

func (p *posix) fallocate(o *Op, r *Result) {
	r.put(0, unix.Fallocate(p.fd(o.FD), uint32(o.Flags), o.Off, o.Len))
}

// copyRange copies from slot FD at Off to slot FD2 at Off2. It repeats the call until all is copied, up to the size that the
// source had at first: copying a file to its own end would never finish.
func (p *posix) copyRange(o *Op, r *Result) {
	from, to, left := o.Off, o.Off2, o.Len
	var st unix.Stat_t
	if unix.Fstat(p.fd(o.FD), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
		left = max(1, min(left, st.Size-from))
	}
	for left > 0 {
		n, err := unix.CopyFileRange(p.fd(o.FD), &from, p.fd(o.FD2), &to, int(left), 0)
		if err != nil && r.Ret == 0 {
			r.put(0, err)
		}
		if err != nil || n == 0 {
			return
		}
		r.Ret += int64(n)
		left -= int64(n)
	}
}

// sendfile is copyRange through the page cache, to the position of slot FD2.
func (p *posix) sendfile(o *Op, r *Result) {
	from, left := o.Off, o.Len
	for left > 0 {
		n, err := unix.Sendfile(p.fd(o.FD2), p.fd(o.FD), &from, int(left))
		if err != nil && r.Ret == 0 {
			r.put(0, err)
		}
		if err != nil || n == 0 {
			return
		}
		r.Ret += int64(n)
		left -= int64(n)
	}
}

func (p *posix) fsync(o *Op, r *Result)     { r.put(0, unix.Fsync(p.fd(o.FD))) }
func (p *posix) fdatasync(o *Op, r *Result) { r.put(0, unix.Fdatasync(p.fd(o.FD))) }

// drop removes the pages of a file from the kernel's cache, so that the next read reaches the file system.
func (p *posix) drop(o *Op, r *Result) {
	err := unix.Fdatasync(p.fd(o.FD))
	if err == nil {
		err = unix.Fadvise(p.fd(o.FD), 0, 0, unix.FADV_DONTNEED)
	}
	r.put(0, err)
}
