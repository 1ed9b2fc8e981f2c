package jbd2

// BlockSize is the size of a block in bytes.
func (c *Cache) BlockSize() int { return c.blockSize }
