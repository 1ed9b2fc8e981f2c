package mountopt

import "math"

// kernel are the options that the kernel's VFS carries out.
var kernel = []Option{
	vfs("nosuid", "set-user-ID programs do not change the user", "suid"),
	vfs("nodev", "device nodes are not opened", "dev"),
	vfs("noexec", "programs are not run", "exec"),
	vfs("noatime", "reading changes no access time", "relatime", "strictatime"),
	vfs("nodiratime", "reading a directory changes no access time", "diratime"),
	usual("relatime", "reading changes the access time once a day, or after a change (the default)", "noatime", "strictatime"),
	vfs("strictatime", "each read changes the access time", "noatime", "relatime"),
	vfs("sync", "each write is on the medium before it returns", "async"),
	vfs("dirsync", "each change of a directory is on the medium before it returns"),
	usual("suid", "undoes nosuid", "nosuid"),
	usual("dev", "undoes nodev", "nodev"),
	usual("exec", "undoes noexec", "noexec"),
	usual("atime", "undoes noatime", "noatime"),
	usual("norelatime", "asks for nothing: relatime is the default"),
	usual("nostrictatime", "undoes strictatime", "strictatime"),
	usual("diratime", "undoes nodiratime", "nodiratime"),
	usual("async", "undoes sync", "sync"),
}

func vfs(name, help string, undoes ...string) Option {
	return Option{Name: name, Layer: Kernel, Help: help, undoes: undoes}
}

// usual is an option that holds without being asked for.
func usual(name, help string, undoes ...string) Option {
	o := vfs(name, help, undoes...)
	o.holds = true
	return o
}

// tuning is what /etc/fstab tells the kernel's ext4 about how to go about its work (ext4(5)).
var tuning = append(
	ignored(Tuning, "block_validity", "noblock_validity", "delalloc", "nodelalloc", "dioread_lock", "dioread_nolock", "i_version", "iversion",
		"journal_checksum", "lazytime", "nolazytime", "loud", "silent", "nobarrier", "nogrpid", "sysvgroups", "noinit_itable", "noquota"),
	ignoredNumbers("auto_da_alloc", "noauto_da_alloc", "barrier", "init_itable", "inode_readahead_blks", "journal_ioprio", "max_batch_time",
		"min_batch_time", "mb_optimize_scan", "stripe")...)

// fstab is what /etc/fstab carries for mount(8), systemd and fsck.
var fstab = append(
	ignored(Fstab, "defaults", "auto", "noauto", "nofail", "user", "nouser", "users", "owner", "group", "_netdev"),
	Option{Name: "comment", Kind: Text, Arg: "TEXT", bare: true, Layer: Fstab},
	Option{Name: "x-", Kind: Prefix, Layer: Fstab},
	Option{Name: "X-", Kind: Prefix, Layer: Fstab})

func ignored(layer Layer, names ...string) (all []Option) {
	for _, n := range names {
		all = append(all, Option{Name: n, Layer: layer})
	}
	return all
}

// ignoredNumbers may have a number.
func ignoredNumbers(names ...string) (all []Option) {
	for _, n := range names {
		all = append(all, Option{Name: n, Kind: Number, High: math.MaxUint32, bare: true, Layer: Tuning})
	}
	return all
}
