package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// systems are those that -ways and -fuse2fs name.
func (b *bench) systems() ([]*system, error) {
	ways := strings.Split(b.ways, ",")
	if b.newer != "" {
		at := len(ways)
		if i := slices.Index(ways, fuse2fs); i >= 0 {
			at = i + 1
		}
		ways = slices.Insert(ways, at, fuse2fs+":"+b.newer)
	}
	var all []*system
	for i, w := range ways {
		s, err := parseWay(w, b.options)
		if err != nil {
			return nil, err
		}
		if s.kind == fuse2fs {
			if s.name, err = fuse2fsVersion(s.argument); err != nil {
				return nil, err
			}
		}
		if slices.ContainsFunc(all, func(o *system) bool { return o.name == s.name }) {
			return nil, fmt.Errorf("two columns would be named %q", s.name)
		}
		s.lanefs = b.lanefs
		s.image, s.mnt = filepath.Join(b.dir, fmt.Sprintf("%d.img", i)), filepath.Join(b.dir, fmt.Sprint(i))
		all = append(all, s)
	}
	return all, nil
}

// parseWay reads one of -ways. common are mount options of every LaneFS.
func parseWay(way, common string) (*system, error) {
	kind, argument, _ := strings.Cut(way, ":")
	s := &system{name: kind, kind: kind, argument: argument}
	switch kind {
	case lanefs:
		if argument != "" {
			s.name += " " + strings.ReplaceAll(argument, "+", ",")
		}
		s.argument = strings.Trim(common+","+strings.ReplaceAll(argument, "+", ","), ",")
		if !strings.Contains(","+s.argument, ",gpu=") {
			s.argument = strings.Trim("gpu=host,"+s.argument, ",") // the machine may have one
		}
	case null:
		if argument != "" {
			s.name += " " + argument
		}
		if argument != "" && argument != "fuse" && argument != "io_uring" {
			return nil, fmt.Errorf("%q: the transports are fuse and io_uring", way)
		}
	case fuse2fs:
		if argument == "" {
			s.argument = fuse2fs
		}
	case kernel:
		if argument != "" {
			return nil, fmt.Errorf("%q: kernel takes nothing", way)
		}
	default:
		return nil, fmt.Errorf("%q: the ways are lanefs, null, fuse2fs and kernel", way)
	}
	return s, nil
}

// fuse2fsVersion is the column of a fuse2fs: its first line says "fuse2fs VERSION (DATE)".
func fuse2fsVersion(path string) (string, error) {
	out, err := exec.Command(path, "-V").CombinedOutput()
	f := strings.Fields(string(out))
	if len(f) < 2 || f[0] != fuse2fs {
		return "", fmt.Errorf("%s -V says %q (%v)", path, out, err)
	}
	return fuse2fs + " " + f[1], nil
}
