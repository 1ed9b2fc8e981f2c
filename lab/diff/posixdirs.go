package diff

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// readdir lists Path with buffers of Len bytes. Each name must be listed once, with the type and the inode number that stat
// returns.
func (p *posix) readdir(o *Op, r *Result) {
	fd, err := unix.Open(o.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		r.put(0, err)
		return
	}
	defer unix.Close(fd)
	list, err := getdentsAll(fd, int(o.Len))
	r.put(len(list), err)
	seen := map[string]bool{}
	for i, e := range list {
		if seen[e.name] {
			r.Note = fmt.Sprintf("name %s is listed twice", clip(e.name))
		}
		seen[e.name] = true
		r.Names = append(r.Names, fmt.Sprintf("%s type %d", e.name, e.typ))
		if i > 50 || e.name == ".." { // ".." of a worker's root leads out of it
			continue
		}
		var st unix.Stat_t
		switch err := unix.Fstatat(fd, e.name, &st, unix.AT_SYMLINK_NOFOLLOW); {
		case err == unix.EACCES:
		case err != nil:
			r.Note = fmt.Sprintf("name %s is listed, but stat says %v", clip(e.name), err)
		case st.Ino != e.ino || st.Mode&unix.S_IFMT>>12 != uint32(e.typ):
			r.Note = fmt.Sprintf("name %s is listed with inode %d type %d, but is inode %d type %d", clip(e.name), e.ino, e.typ,
				st.Ino, st.Mode&unix.S_IFMT>>12)
		}
	}
	if err == nil && !(seen["."] && seen[".."]) {
		r.Note = `"." or ".." is not listed`
	}
	slices.Sort(r.Names)
}

// seekdir seeks back to about 20 positions of a directory, and must read the same entry there as before.
func (p *posix) seekdir(o *Op, r *Result) {
	fd, err := openDir(o.Path)
	if err != nil {
		r.put(0, err)
		return
	}
	defer unix.Close(fd)
	list, err := getdentsAll(fd, 1024)
	if r.put(len(list), err); err != nil {
		return
	}
	step := max(1, len(list)/20)
	for i := len(list) - 1; i >= 0; i -= step {
		if _, err := unix.Seek(fd, list[i].next, unix.SEEK_SET); err != nil {
			r.Note = fmt.Sprintf("seekdir to %d: %v", list[i].next, err)
			return
		}
		got, err := getdents(fd, 1024)
		if err != nil {
			r.Note = fmt.Sprintf("readdir after seekdir to %d: %v", list[i].next, err)
			return
		}
		want := list[i+1:]
		if len(got) == 0 != (len(want) == 0) || len(got) > 0 && got[0].name != want[0].name {
			r.Note = fmt.Sprintf("after seekdir to entry %d of %d there is something else than before", i+1, len(list))
			return
		}
	}
}

// churn reads a directory in small pieces while names are made, removed and renamed in it. Names that exist all the time must
// be listed exactly once. Len is the number of names that change; they are removed at the end.
func (p *posix) churn(o *Op, r *Result) {
	fd, err := openDir(o.Path)
	if err != nil {
		r.put(0, err)
		return
	}
	defer unix.Close(fd)
	before, err := getdentsAll(fd, 64<<10)
	if err != nil {
		r.put(0, err)
		return
	}
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		r.put(0, err)
		return
	}
	rng := rand.New(rand.NewPCG(uint64(o.Seed), 0))
	var live []string
	count := map[string]int{}
	step := func(i int) {
		switch k := rng.IntN(4); {
		case k == 0 && len(live) > 0:
			j := rng.IntN(len(live))
			unix.Unlinkat(fd, live[j], 0)
			live = slices.Delete(live, j, j+1)
		case k == 1 && len(live) > 0:
			j := rng.IntN(len(live))
			name := fmt.Sprintf("%s-renamed-%d", churnPrefix, i)
			if unix.Renameat(fd, live[j], fd, name) == nil {
				live[j] = name
			}
		default:
			name := fmt.Sprintf("%s-%d-%s", churnPrefix, i, strings.Repeat("c", rng.IntN(100)))
			if unix.Mknodat(fd, name, unix.S_IFREG|0o600, 0) == nil {
				live = append(live, name)
			}
		}
	}
	for i, done := 0, false; !done; {
		list, err := getdents(fd, 600)
		if err != nil {
			r.put(0, err)
			break
		}
		done = len(list) == 0
		for _, e := range list {
			count[e.name]++
		}
		for range 3 {
			if i++; int64(i) <= o.Len {
				step(i)
			}
		}
	}
	for _, e := range before {
		if n := count[e.name]; n != 1 && r.Errno == 0 {
			r.Note = fmt.Sprintf("name %s was there all the time and was listed %d times", clip(e.name), n)
		}
	}
	for _, name := range live {
		unix.Unlinkat(fd, name, 0)
	}
}

const churnPrefix = "churning"

func massName(o *Op, i int64) string {
	n := fmt.Sprintf("mass%d-%d-", o.Seed, i)
	return n + strings.Repeat("m", int(o.Off))
}

// massMake makes Len files in Path, with names made longer by Off bytes. Ret is how many it made.
func (p *posix) massMake(o *Op, r *Result) {
	fd, err := openDir(o.Path)
	if err != nil {
		r.put(0, err)
		return
	}
	defer unix.Close(fd)
	for i := range o.Len {
		r.count(unix.Mknodat(fd, massName(o, i), unix.S_IFREG|0o644, 0))
	}
}

// massDrop removes what a massMake with the same arguments made, but for every Off2-th name.
func (p *posix) massDrop(o *Op, r *Result) {
	fd, err := openDir(o.Path)
	if err != nil {
		r.put(0, err)
		return
	}
	defer unix.Close(fd)
	for i := range o.Len {
		if o.Off2 > 0 && i%o.Off2 == 0 {
			continue
		}
		r.count(unix.Unlinkat(fd, massName(o, i), 0))
	}
}
