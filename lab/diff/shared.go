package diff

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The shared profile: several processes in the same directories. Each has names of its own there, which the others do not
// touch: the results of operations on them, and what is left of them, are the same on both sides whatever the others do. The
// names that begin with "any" are shared by all processes: what becomes of them is up to chance, and only violations that no
// order of operations can explain are errors.
//
// The two sides do not run in step: each process runs its sequence, up to a remount, as fast as it can.

var sharedDirs = []string{"s0", "s1", "s2", "s0/s3"}

const sharedPrefix = "any"

type sharedGen struct {
	*gen
	choices
}

func newSharedGen(g *gen) *sharedGen {
	s := &sharedGen{gen: g}
	two := func(kind Kind) func() Op {
		return func() Op { a, b := s.pair(); return Op{Kind: kind, Path: a, Path2: b} }
	}
	one := func(o Op) func() Op { return func() Op { o := o; o.Path = s.name(); return o } }
	s.choices = newChoices([]choice{
		{14, s.open}, {10, one(Op{Kind: OpUnlink})}, {14, s.rename}, {8, two(OpLink)}, {5, one(Op{Kind: OpMkdir, Mode: 0o755})},
		{5, one(Op{Kind: OpRmdir})}, {4, s.symlink}, {6, s.write}, {4, s.read}, {4, one(Op{Kind: OpTruncate, Len: 30_000})},
		{4, one(Op{Kind: OpChmod, Mode: 0o640})}, {4, s.setxattr}, {3, s.readdir}, {2, one(Op{Kind: OpReadlink})},
		{3, one(Op{Kind: OpStat, Flags: unix.AT_SYMLINK_NOFOLLOW})}, {1, func() Op { return Op{Kind: OpFsync, FD: g.slot()} }},
		{3, func() Op { return Op{Kind: OpClose, FD: g.slot()} }}, {4, s.fallocate},
	})
	return s
}

func (s *sharedGen) next() Op { return s.choices.next(s.gen) }

// names are of one kind in one Op: the process's own, or shared ones. Slots are even for its own files, odd for shared ones.
func (s *sharedGen) nameOf(own bool) string {
	base := fmt.Sprintf("%s%d", sharedPrefix, s.rng.IntN(8))
	if own {
		base = fmt.Sprintf("own%d-%d", s.proc, s.rng.IntN(12))
	}
	return path.Join(pick(s.gen, sharedDirs...), base)
}

func (s *sharedGen) name() string { return s.nameOf(s.one(2)) }

func (s *sharedGen) pair() (a, b string) {
	own := s.one(2)
	return s.nameOf(own), s.nameOf(own)
}

func (s *sharedGen) slotOf(own bool) int {
	if n := s.slot() &^ 1; own {
		return n
	} else {
		return n | 1
	}
}

func (s *sharedGen) open() Op {
	own := s.one(2)
	flags := pick(s.gen, unix.O_RDWR, unix.O_RDWR, unix.O_RDONLY, unix.O_WRONLY) | pick(s.gen, 0, unix.O_CREAT, unix.O_CREAT, unix.O_CREAT|unix.O_EXCL, unix.O_TRUNC, unix.O_APPEND)
	return Op{Kind: OpOpen, FD: s.slotOf(own), Path: s.nameOf(own), Flags: flags, Mode: 0o644}
}

func (s *sharedGen) rename() Op {
	a, b := s.pair()
	return Op{Kind: OpRename, Path: a, Path2: b, Flags: pick(s.gen, 0, 0, 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE)}
}

func (s *sharedGen) symlink() Op {
	return Op{Kind: OpSymlink, Path: s.name(), Path2: "/no/such/directory"}
}

func (s *sharedGen) write() Op {
	return Op{Kind: OpPwrite, FD: s.slot(), Off: s.upTo(60_000), Len: 1 + s.upTo(40_000), Seed: s.seed()}
}

func (s *sharedGen) read() Op {
	return Op{Kind: OpPread, FD: s.slot(), Off: s.upTo(60_000), Len: 40_000}
}

func (s *sharedGen) fallocate() Op {
	return Op{Kind: OpFallocate, FD: s.slot(), Off: s.upTo(60_000), Len: 1 + s.upTo(40_000), Flags: pick(s.gen, 0, keepSize, punch|keepSize, zero)}
}

func (s *sharedGen) setxattr() Op {
	o := Op{Kind: OpSetxattr, Path: s.name(), Name: "user.a", Value: make([]byte, s.upTo(600)), Flags: unix.AT_SYMLINK_NOFOLLOW}
	Fill(o.Value, s.seed(), 0)
	return o
}

func (s *sharedGen) readdir() Op {
	return Op{Kind: OpReaddir, Path: pick(s.gen, sharedDirs...), Len: 4096}
}

// contested reports whether an Op's outcome is up to chance.
func contested(o *Op) bool {
	return strings.Contains(o.Path, sharedPrefix) || strings.Contains(o.Path2, sharedPrefix) || o.Kind == OpReaddir ||
		usesFD[o.Kind] && o.Kind != OpOpen && o.FD&1 == 1
}

// contestedErrors are the errors that other processes' operations can cause.
var contestedErrors = []unix.Errno{0, unix.ENOENT, unix.EEXIST, unix.ENOTDIR, unix.EISDIR, unix.ENOTEMPTY, unix.EINVAL, unix.EPERM, unix.EBADF, unix.ELOOP,
	unix.ENXIO, unix.EOPNOTSUPP}

// runApart runs a process's steps up to a remount or the end on each side by itself, and compares the outcomes that are not up
// to chance.
func (p *proc) runApart(r *run) *Failure {
	steps := p.steps[p.at:]
	if i := slices.IndexFunc(steps, func(s step) bool { return s.Kind == OpRemount }); i >= 0 {
		steps = steps[:i]
		p.at++ // the remount
	}
	p.at += len(steps)
	results := make([][]Result, len(p.workers))
	errs := make([]error, len(p.workers))
	done := make(chan int)
	for i, w := range p.workers {
		go func() {
			defer func() { done <- i }()
			for k := range steps {
				a, err := w.call(request{Op: &steps[k].Op})
				if err != nil {
					errs[i] = err
					return
				}
				if contested(&steps[k].Op) {
					a.Result.Data = nil
				}
				results[i] = append(results[i], a.Result)
			}
		}()
	}
	for range p.workers {
		<-done
	}
	for i, err := range errs {
		if err == nil {
			continue
		}
		s := &steps[len(results[i])]
		f := &Failure{Config: r.Config, Stage: "operation", Proc: p.n, Index: s.index, Op: s.Op, Diffs: []string{"broken: " + err.Error()}}
		if i == 0 {
			r.explain(f, err)
		}
		return f
	}
	for k := range steps {
		s := &steps[k]
		l := results[0][k]
		f := &Failure{Config: r.Config, Stage: "operation", Proc: p.n, Index: s.index, Op: s.Op}
		if contested(&s.Op) {
			if !slices.Contains(contestedErrors, l.Errno) {
				f.Diffs = []string{"errno: " + errnoName(l.Errno) + " cannot come from what other processes do"}
				return f
			}
			continue
		}
		if len(results) == 1 {
			continue // what came of it is up to no other side; the tree is checked at the end
		}
		right := results[1][k]
		adjust(&r.Config, &s.Op, &l, &right)
		if f.Diffs = compare(l, right); len(f.Diffs) > 0 {
			return f
		}
	}
	return nil
}

// comparable is a tree without what is up to chance, or accepted.
func (r *run) comparable(tree []Entry) []Entry {
	if r.Left.WriteBack {
		for i := range tree {
			tree[i].Blocks = 0
		}
	}
	if r.Profile != ProfileShared {
		return tree
	}
	var out []Entry
	for _, e := range tree {
		if strings.Contains(e.Path, sharedPrefix) {
			continue
		}
		if e.Mode&unix.S_IFMT == unix.S_IFDIR {
			e.Nlink = 0
		}
		out = append(out, e)
	}
	return out
}
