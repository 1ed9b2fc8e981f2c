package disk_test

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func sysStat(fi os.FileInfo) *syscall.Stat_t { return fi.Sys().(*syscall.Stat_t) }

func mkdev(major, minor uint32) uint64 { return unix.Mkdev(major, minor) }
