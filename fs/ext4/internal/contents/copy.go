package contents

import "github.com/lanefs/lanefs/fs/ext4/internal/volume"

// CopyRange copies n bytes from off of i to dstOff of dst, which may be the same file, and returns how many it copied:
// fewer at the end of i.
func CopyRange(i *volume.Inode, off int64, dst *volume.Inode, dstOff, n int64, may ...volume.May) (done int64, err error) {
	for done < n {
		data, err := Read(i, off+done, int(min(n-done, 1<<20)))
		if err != nil {
			return done, err
		}
		k, err := Write(dst, dstOff+done, data.Bytes(), may...)
		data.Release()
		done += int64(k)
		if err != nil || k == 0 {
			return done, err
		}
	}
	return done, nil
}
