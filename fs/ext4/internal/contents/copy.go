package contents

import "github.com/lanefs/lanefs/fs/ext4/internal/volume"

// copyStep is how many bytes of a copy are in memory at a time.
const copyStep = 1 << 20

// CopyRange copies n bytes from off of i to dstOff of dst, which may be the same file, and returns how many it copied: fewer at
// the end of i.
func CopyRange(i *volume.Inode, off int64, dst *volume.Inode, dstOff, n int64, may ...volume.May) (done int64, err error) {
	var p []byte
	for done < n {
		data, err := Read(i, off+done, int(min(n-done, copyStep)))
		if err != nil {
			return done, err
		}
		// The pinned buffer is released before Write, which may have to wait for one.
		p = append(p[:0], data.Bytes()...)
		data.Release()
		k, err := Write(dst, dstOff+done, p, may...)
		done += int64(k)
		if err != nil || k == 0 {
			return done, err
		}
	}
	return done, nil
}
