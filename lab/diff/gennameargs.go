package diff

import (
	"fmt"
	"slices"
	"strings"
)

// Components of new names. Few of them, so that names collide.
var components = []string{"a", "b", "c", "d", "e", "f", "g", "h", "name with spaces", "übergröße", "\x01\xff", ".hidden", "...", "long"}

func (n *namesGen) component() string {
	switch n.rng.IntN(25) {
	case 0:
		return strings.Repeat("x", 255)
	case 1:
		return strings.Repeat("y", pick(n.gen, 100, 200, 254))
	case 2:
		return strings.Repeat("z", 256) // too long
	case 3:
		n.fresh++
		return fmt.Sprintf("n%d", n.fresh)
	}
	return pick(n.gen, components...)
}

// old is a name that probably exists.
func (n *namesGen) old(kinds string) string {
	for range 10 {
		if len(n.names) == 0 {
			break
		}
		if k := n.names[n.rng.IntN(len(n.names))]; strings.IndexByte(kinds, k.kind) >= 0 {
			return k.path
		}
	}
	return pick(n.gen, components...)
}

func (n *namesGen) dir() string {
	if n.one(3) {
		return "."
	}
	return n.old("d")
}

// new is a name in some directory, which may be taken.
func (n *namesGen) new() string {
	d, c := n.dir(), n.component()
	if strings.Count(d, "/") > 6 {
		d = "."
	}
	if d == "." {
		return c
	}
	return d + "/" + c
}

// any is a name for an Op on an existing file: mostly a plain one, sometimes with "//", "." or "..", sometimes invalid.
func (n *namesGen) any() string {
	p := n.old("dfl")
	switch n.rng.IntN(40) {
	case 0:
		return p + "/"
	case 1:
		return p + "/."
	case 2:
		return p + "/.."
	case 3:
		return p + "/below"
	case 4:
		return "./" + strings.ReplaceAll(p, "/", "//")
	case 5:
		return ""
	case 6:
		return n.new()
	case 7:
		return "."
	case 8:
		return strings.Repeat("p/", 2100) + p // longer than PATH_MAX
	case 9:
		return "/" + p
	}
	return p
}

// dest is a name for an Op that makes one.
func (n *namesGen) dest() string {
	switch n.rng.IntN(12) {
	case 0:
		return n.any()
	case 1:
		return n.new() + "/"
	case 2:
		return n.old("f") + "/" + n.component() // not a directory
	}
	return n.new()
}

func (n *namesGen) learn(path string, kind byte) {
	path = strings.Trim(path, "/")
	if path == "" || strings.HasSuffix(path, ".") || len(n.names) > 300 {
		return
	}
	n.forget(path)
	n.names = append(n.names, known{path, kind})
}

func (n *namesGen) forget(path string) {
	n.names = slices.DeleteFunc(n.names, func(k known) bool { return k.path == path || strings.HasPrefix(k.path, path+"/") })
}

func (n *namesGen) mode() uint32 {
	return pick(n.gen, 0o644, 0o755, 0o777, 0o700, 0o1777, 0o4755, 0o2755, 0o2777, 0o6777, 0o600, 0, 0o7777, uint32(n.rng.IntN(0o10000)))
}
