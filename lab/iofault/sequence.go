package iofault

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/lab/diff"
)

// operations returns a sequence of the differential generator, fitted to a layout: an Op that makes many files is split, and
// sizes are such that files have many extents but fit into a volume of a few MiB.
func operations(l *Layout, profile diff.Profile, seed uint64, n int) []diff.Op {
	rng := rand.New(rand.NewPCG(seed, 77))
	var list []diff.Op
	for _, o := range diff.Generate(profile, seed, 0, n) {
		o.As, o.Late = 0, false
		if profile == diff.ProfileNames {
			list = append(list, namesOp(o, rng)...)
			if rng.IntN(12) == 0 {
				list = append(list, indexedOp(rng))
			}
		} else if dataOp(l, &o) {
			list = append(list, o)
		}
		if rng.IntN(60) == 0 {
			list = append(list, diff.Op{Kind: opTrim})
		}
	}
	return list
}

// scale is the factor by which files are smaller than the generator's.
const scale = 4

func dataOp(l *Layout, o *diff.Op) bool {
	switch {
	case o.Kind == diff.OpFallocate && l.Maps:
		return false
	case o.Kind == diff.OpOpen:
		o.Flags &^= unix.O_ACCMODE | unix.O_DIRECT
		o.Flags |= unix.O_RDWR
	}
	if l.Block == 1024 {
		o.Off, o.Off2, o.Len = o.Off/scale, o.Off2/scale, (o.Len+scale-1)/scale
	}
	return true
}

// namesOp returns the steps of an operation on names.
func namesOp(o diff.Op, rng *rand.Rand) []diff.Op {
	long := func(o *diff.Op) bool { return len(o.Path) > 4000 || len(o.Path2) > 5000 }
	switch o.Kind {
	case diff.OpMassMake, diff.OpMassDrop, diff.OpChurn:
		return massOps(o, rng)
	case diff.OpTruncate:
		if o.Len > 1<<40 {
			o.Len = 1 << 20
		}
	}
	if long(&o) {
		return nil
	}
	return []diff.Op{o}
}

// indexedOp returns an operation in the directory that has an index, mostly on an existing name, so that it needs one of
// several blocks, which may not be cached.
func indexedOp(rng *rand.Rand) diff.Op {
	one, other := indexedName(rng.IntN(indexedNames)), indexedName(rng.IntN(indexedNames+4))
	return []diff.Op{
		{Kind: diff.OpLink, Path: one, Path2: other},
		{Kind: diff.OpLink, Path: indexedName(0), Path2: other},
		{Kind: diff.OpMknod, Path: other, Mode: unix.S_IFREG | 0o644},
		{Kind: diff.OpMkdir, Path: other, Mode: 0o755},
		{Kind: diff.OpSymlink, Path: other, Path2: one},
		{Kind: diff.OpRename, Path: one, Path2: other},
		{Kind: diff.OpRename, Path: one, Path2: other, Flags: ext4.RenameNoReplace},
		{Kind: diff.OpUnlink, Path: one},
	}[rng.IntN(8)]
}

// indexedName is a name of the directory that every aged volume has.
func indexedName(k int) string { return fmt.Sprintf("d/n%d%s", k, strings.Repeat("x", k*7%60)) }

const indexedNames = 60

// mostMass is the most names that one OpMassMake makes here.
const mostMass = 24

func massOps(o diff.Op, rng *rand.Rand) []diff.Op {
	var list []diff.Op
	name := func(k int64) string {
		return strings.Trim(o.Path, "/") + fmt.Sprintf("/mass%d-%d-", o.Seed, k) + strings.Repeat("m", int(o.Off))
	}
	switch o.Kind {
	case diff.OpMassMake:
		for k := range min(o.Len, mostMass) {
			list = append(list, diff.Op{Kind: diff.OpMknod, Path: name(k), Mode: unix.S_IFREG | 0o644})
		}
	case diff.OpMassDrop:
		for k := range min(o.Len, mostMass) {
			if o.Off2 == 0 || k%o.Off2 != 0 {
				list = append(list, diff.Op{Kind: diff.OpUnlink, Path: name(k)})
			}
		}
	case diff.OpChurn:
		dir := strings.Trim(o.Path, "/")
		for k := range min(o.Len, 6) {
			a, b := fmt.Sprintf("%s/churn-%d", dir, k), fmt.Sprintf("%s/churned-%d-%s", dir, k, strings.Repeat("c", rng.IntN(100)))
			list = append(list, diff.Op{Kind: diff.OpMknod, Path: a, Mode: unix.S_IFREG | 0o600},
				diff.Op{Kind: diff.OpRename, Path: a, Path2: b}, diff.Op{Kind: diff.OpUnlink, Path: b})
		}
	}
	return list
}

// chance returns a random source that is seeded by its arguments alone.
func chance(what ...any) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprintln(h, what...)
	return rand.New(rand.NewPCG(h.Sum64(), 1))
}
