package ext4

// CopyRange copies n bytes from off of i to dstOff of dst, which may be the same file, and returns how many it copied:
// fewer at the end of i.
func (i *Inode) CopyRange(off int64, dst *Inode, dstOff, n int64, may ...May) (done int64, err error) {
	for done < n {
		data, err := i.Read(off+done, int(min(n-done, 1<<20)))
		if err != nil {
			return done, err
		}
		k, err := dst.Write(dstOff+done, data.Bytes(), may...)
		data.Release()
		done += int64(k)
		if err != nil || k == 0 {
			return done, err
		}
	}
	return done, nil
}
