package dir

import (
	"os"
	"syscall"
)

func statIno(fi os.FileInfo) uint32 { return uint32(fi.Sys().(*syscall.Stat_t).Ino) }
