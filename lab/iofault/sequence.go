package iofault

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/difftest"
	"github.com/lanefs/lanefs/fs/ext4"
)

// operations is a sequence of the differential generator, as it is played on a layout: what does many things at once is
// cut into them, and sizes are such that files have many pieces, but a volume of a few MiB has room for them.
func operations(l *Layout, profile difftest.Profile, seed uint64, n int) []difftest.Op {
	rng := rand.New(rand.NewPCG(seed, 77))
	var list []difftest.Op
	for _, o := range difftest.Generate(profile, seed, 0, n) {
		o.As, o.Late = 0, false
		if profile == difftest.ProfileNames {
			list = append(list, namesOp(o, rng)...)
			if rng.IntN(12) == 0 {
				list = append(list, indexedOp(rng))
			}
		} else if dataOp(l, &o) {
			list = append(list, o)
		}
		if rng.IntN(60) == 0 {
			list = append(list, difftest.Op{Kind: opTrim})
		}
	}
	return list
}

// scale is how much smaller files are than the generator has them.
const scale = 4

func dataOp(l *Layout, o *difftest.Op) bool {
	switch {
	case o.Kind == difftest.OpFallocate && l.Maps:
		return false
	case o.Kind == difftest.OpOpen:
		o.Flags &^= unix.O_ACCMODE | unix.O_DIRECT
		o.Flags |= unix.O_RDWR
	case o.Kind == difftest.OpFallocate && o.Flags&(unix.FALLOC_FL_COLLAPSE_RANGE|unix.FALLOC_FL_INSERT_RANGE) != 0 && l.Block > 1024:
		return o.Off%int64(l.Block) == 0 && o.Len%int64(l.Block) == 0
	}
	if l.Block == 1024 {
		o.Off, o.Off2, o.Len = o.Off/scale, o.Off2/scale, (o.Len+scale-1)/scale
	}
	return true
}

// namesOp gives the steps of an operation on names.
func namesOp(o difftest.Op, rng *rand.Rand) []difftest.Op {
	long := func(o *difftest.Op) bool { return len(o.Path) > 4000 || len(o.Path2) > 5000 }
	switch o.Kind {
	case difftest.OpMassMake, difftest.OpMassDrop, difftest.OpChurn:
		return massOps(o, rng)
	case difftest.OpTruncate:
		if o.Len > 1<<40 {
			o.Len = 1 << 20
		}
	}
	if long(&o) {
		return nil
	}
	return []difftest.Op{o}
}

// indexedOp is an operation in the directory that has an index, mostly on a name that it has: one of several blocks, whichever others are
// in memory.
func indexedOp(rng *rand.Rand) difftest.Op {
	one, other := indexedName(rng.IntN(indexedNames)), indexedName(rng.IntN(indexedNames+4))
	return []difftest.Op{
		{Kind: difftest.OpLink, Path: one, Path2: other},
		{Kind: difftest.OpLink, Path: indexedName(0), Path2: other},
		{Kind: difftest.OpMknod, Path: other, Mode: unix.S_IFREG | 0o644},
		{Kind: difftest.OpMkdir, Path: other, Mode: 0o755},
		{Kind: difftest.OpSymlink, Path: other, Path2: one},
		{Kind: difftest.OpRename, Path: one, Path2: other},
		{Kind: difftest.OpRename, Path: one, Path2: other, Flags: ext4.RenameNoReplace},
		{Kind: difftest.OpUnlink, Path: one},
	}[rng.IntN(8)]
}

// indexedName is a name of the directory that every aged volume has.
func indexedName(k int) string { return fmt.Sprintf("d/n%d%s", k, strings.Repeat("x", k*7%60)) }

const indexedNames = 60

// mostMass is how many of the names that one operation of the generator makes are made here.
const mostMass = 24

func massOps(o difftest.Op, rng *rand.Rand) []difftest.Op {
	var list []difftest.Op
	name := func(k int64) string {
		return strings.Trim(o.Path, "/") + fmt.Sprintf("/mass%d-%d-", o.Seed, k) + strings.Repeat("m", int(o.Off))
	}
	switch o.Kind {
	case difftest.OpMassMake:
		for k := range min(o.Len, mostMass) {
			list = append(list, difftest.Op{Kind: difftest.OpMknod, Path: name(k), Mode: unix.S_IFREG | 0o644})
		}
	case difftest.OpMassDrop:
		for k := range min(o.Len, mostMass) {
			if o.Off2 == 0 || k%o.Off2 != 0 {
				list = append(list, difftest.Op{Kind: difftest.OpUnlink, Path: name(k)})
			}
		}
	case difftest.OpChurn:
		dir := strings.Trim(o.Path, "/")
		for k := range min(o.Len, 6) {
			a, b := fmt.Sprintf("%s/churn-%d", dir, k), fmt.Sprintf("%s/churned-%d-%s", dir, k, strings.Repeat("c", rng.IntN(100)))
			list = append(list, difftest.Op{Kind: difftest.OpMknod, Path: a, Mode: unix.S_IFREG | 0o600},
				difftest.Op{Kind: difftest.OpRename, Path: a, Path2: b}, difftest.Op{Kind: difftest.OpUnlink, Path: b})
		}
	}
	return list
}

// chance gives a source of chance that follows from what it is for alone.
func chance(what ...any) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprintln(h, what...)
	return rand.New(rand.NewPCG(h.Sum64(), 1))
}
