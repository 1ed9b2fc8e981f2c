package alloc

// Blocks that operations on inodes dirty at most.
const (
	AllocInodeCredits = 4 // two bitmaps, a descriptor block, a block of the inode table
	FreeInodeCredits  = 2
)
