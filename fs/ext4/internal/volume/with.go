package volume

import "github.com/lanefs/lanefs/fs/ext4/alloc"

// A volume keeps some blocks for the superuser, so that a user that fills it does not stop the system. The caller says for each
// operation that takes blocks whether it may have these: for root, and for the user and the group that the superblock names
// (Statfs).

// May is what an operation may do beyond others, because of the user that it is done for.
type May uint8

// UseReserved lets an operation take the blocks that are reserved for the superuser.
const UseReserved May = 1 << iota

// AllocFlags is what the operation may take.
func (o *Op) AllocFlags() int {
	if o.may&UseReserved != 0 {
		return alloc.UseReserved
	}
	return 0
}

// With is an option of an operation that makes a file: a May, or Xattrs.
type With interface{ with(*Making) }

// Xattrs are extended attributes that a file has from its first moment: they are in the transaction that makes it. Values have
// the form that Setxattr takes.
type Xattrs []Xattr

// Xattr is one of them.
type Xattr struct {
	Name  string
	Value []byte
}

// Making is the options of one operation that makes a file.
type Making struct {
	May    []May
	Xattrs Xattrs
}

func (m May) with(to *Making) { to.May = append(to.May, m) }

func (x Xattrs) with(to *Making) { to.Xattrs = append(to.Xattrs, x...) }

// MakingOf gathers options.
func MakingOf(with []With) (m Making) {
	for _, w := range with {
		w.with(&m)
	}
	return m
}
