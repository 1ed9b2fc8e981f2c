package main

import (
	"errors"
	"path/filepath"
	"strings"
)

// mount(8) does not know LaneFS. For type lanefs it runs /sbin/mount.lanefs, a link to this program, as described in its section
// "External helpers":
//
//	mount.lanefs DEVICE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE.SUBTYPE]
//
// For type fuse.lanefs it runs mount.fuse.lanefs in the same way, or, where there is none, fuse3's mount.fuse, which runs
// `lanefs DEVICE DIR -o OPTIONS`. DEVICE is as it was given, DIR absolute.

// helperArgs makes arguments of `lanefs` from those of a mount helper. Others stay as they are.
func helperArgs(argv []string) ([]string, error) {
	args := argv[1:]
	switch {
	case strings.HasPrefix(filepath.Base(argv[0]), "mount."):
		flags, err := helperFlags(args)
		return append([]string{"mount"}, flags...), err
	case len(args) >= 2 && strings.Contains(args[0], "/") && strings.Contains(args[1], "/"),
		len(args) >= 4 && args[0] != "mount" && filepath.IsAbs(args[1]) && args[2] == "-o":
		return append([]string{"mount"}, args...), nil
	}
	return args, nil
}

// helperFlags translates the flags of a mount helper: -n (no mtab), -s (sloppy), -v (verbose) and -t TYPE mean nothing here, -f is
// a mount that is not made.
func helperFlags(args []string) (out []string, err error) {
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case "-n", "-s", "-v":
		case "-t":
			i++
		case "-f":
			out = append(out, "--fake")
		case "-N":
			return nil, errors.New("mount -N is not supported: use nsenter --mount=NAMESPACE mount")
		case "-o":
			out = append(out, args[i:min(i+2, len(args))]...)
			i++
		default:
			out = append(out, args[i])
		}
	}
	return out, nil
}
