package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// mount(8) does not know LaneFS. For type lanefs it runs /sbin/mount.lanefs, a link to this program, as described in its section
// "External helpers":
//
//	mount.lanefs DEVICE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE.SUBTYPE]
//
// umount(8) runs umount.fuse.lanefs, also a link, which returns when the volume is closed:
//
//	umount.fuse.lanefs DIR|DEVICE [-flnrv] [-N NAMESPACE] [-t TYPE.SUBTYPE]
//
// For type fuse.lanefs it runs mount.fuse.lanefs in the same way, or, where there is none, fuse3's mount.fuse, which runs
// `lanefs DEVICE DIR -o OPTIONS`. DEVICE is as it was given, DIR absolute.

// helperArgs makes arguments of `lanefs` from those of a mount helper. Others stay as they are.
func helperArgs(argv []string) ([]string, error) {
	args := argv[1:]
	switch {
	case mountHelper(filepath.Base(argv[0])) == "mount":
		flags, err := helperFlags(args)
		return append([]string{"mount"}, flags...), err
	case mountHelper(filepath.Base(argv[0])) == "umount":
		flags, err := umountFlags(args)
		return append([]string{"umount"}, flags...), err
	case len(args) >= 2 && strings.Contains(args[0], "/") && strings.Contains(args[1], "/"),
		len(args) >= 4 && args[0] != "mount" && filepath.IsAbs(args[1]) && args[2] == "-o":
		return append([]string{"mount"}, args...), nil
	}
	return args, nil
}

// mountHelper is the command that a helper of mount(8) or umount(8) is, by the name it was called by; empty for other names.
func mountHelper(name string) string {
	if command, _, ok := strings.Cut(name, "."); ok && (command == "mount" || command == "umount") {
		return command
	}
	return ""
}

// helperFlags translates the flags of a mount helper: -n (no mtab), -v (verbose) and -t TYPE mean nothing here, -s (sloppy) has options
// that LaneFS does not know left out, -f is a mount that is not made.
func helperFlags(args []string) (out []string, err error) {
	for i := 0; i < len(args); i++ {
		if a := args[i]; len(a) > 2 && a[0] == '-' && strings.Trim(a[1:], "sfnv") == "" { // mount(8) gives them apart; a person may not
			apart := make([]string, len(a)-1)
			for k, flag := range a[1:] {
				apart[k] = "-" + string(flag)
			}
			args = slices.Replace(slices.Clone(args), i, i+1, apart...)
		}
		switch args[i] {
		case "-n", "-v":
		case "-t":
			i++
		case "-f":
			out = append(out, "--fake")
		case "-s":
			out = append(out, "--sloppy")
		case "-N":
			return nil, usage(errors.New("mount -N is not supported: use nsenter --mount=NAMESPACE mount"))
		case "-o":
			out = append(out, args[i:min(i+2, len(args))]...)
			i++
		default:
			out = append(out, args[i])
		}
	}
	return out, nil
}

// umountFlags translates the flags of an umount helper: -n (no mtab) and -t TYPE mean nothing here. umount(8) says nothing when all is well,
// unless -v is given.
func umountFlags(args []string) (out []string, err error) {
	quiet := true
	for i := 0; i < len(args); i++ {
		a := args[i]
		if !strings.HasPrefix(a, "-") {
			out = append(out, a)
			continue
		}
		for _, flag := range a[1:] { // umount(8) gives them apart; a person may not
			switch flag {
			case 'n':
			case 'v':
				quiet = false
			case 't':
				i++
			case 'l':
				out = append(out, "--lazy")
			case 'f':
				return nil, usage(errors.New("umount -f would lose what is not written yet: use umount -l, or kill the daemon that `lanefs stat` names"))
			case 'r':
				return nil, usage(errors.New("umount -r is not supported: mount -o remount,ro DIR makes a busy mount read-only"))
			case 'N':
				return nil, usage(errors.New("umount -N is not supported: use nsenter --mount=NAMESPACE umount"))
			default:
				return nil, usage(fmt.Errorf("umount.lanefs: unknown flag -%c", flag))
			}
		}
	}
	if quiet {
		out = append(out, "--quiet")
	}
	return out, nil
}
