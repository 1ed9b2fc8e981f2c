package ext4

import "github.com/lanefs/lanefs/fs/ext4/alloc"

// A volume keeps some blocks for the superuser, so that a user who fills it does not stop the system. Whoever calls says
// for each operation that takes blocks whether it is done for someone who may have them. Who that is the superblock says,
// beside root: Statfs tells.

// May is what the one for whom an operation is done may do beyond others.
type May uint8

// UseReserved lets an operation take the blocks that are reserved for the superuser.
const UseReserved May = 1 << iota

// allocFlags is what the operation may take.
func (o *op) allocFlags() int {
	if o.may&UseReserved != 0 {
		return alloc.UseReserved
	}
	return 0
}
