package fs

import "github.com/lanefs/lanefs/fs/ext4"

// xattrs is what package ext4 will offer on Inode; until then no file has any.
type xattrs interface {
	Getxattr(name string) ([]byte, error)
	Setxattr(name string, value []byte, flags int) error
	Listxattr() ([]string, error)
	Removexattr(name string) error
}

func xattrsOf(in *ext4.Inode) xattrs {
	if x, ok := any(in).(xattrs); ok {
		return x
	}
	return noXattrs{}
}

type noXattrs struct{}

func (noXattrs) Getxattr(string) ([]byte, error)    { return nil, ext4.ErrNoAttr }
func (noXattrs) Setxattr(string, []byte, int) error { return ext4.ErrNotSup }
func (noXattrs) Listxattr() ([]string, error)       { return nil, nil }
func (noXattrs) Removexattr(string) error           { return ext4.ErrNotSup }
