package disk

import (
	"fmt"
	"math/bits"
	"strings"
)

// Compat is s_feature_compat: features that a driver may ignore ([layout] Super Block).
type Compat uint32

const (
	CompatDirPrealloc   Compat = 0x1
	CompatImagicInodes  Compat = 0x2
	CompatHasJournal    Compat = 0x4
	CompatExtAttr       Compat = 0x8
	CompatResizeInode   Compat = 0x10
	CompatDirIndex      Compat = 0x20
	CompatLazyBG        Compat = 0x40
	CompatExcludeInode  Compat = 0x80
	CompatExcludeBitmap Compat = 0x100
	CompatSparseSuper2  Compat = 0x200
	CompatFastCommit    Compat = 0x400
	CompatStableInodes  Compat = 0x800
	CompatOrphanFile    Compat = 0x1000
)

// Incompat is s_feature_incompat: features that a driver must know to touch the volume at all.
type Incompat uint32

const (
	IncompatCompression Incompat = 0x1
	IncompatFiletype    Incompat = 0x2
	IncompatRecover     Incompat = 0x4
	IncompatJournalDev  Incompat = 0x8
	IncompatMetaBG      Incompat = 0x10
	IncompatExtents     Incompat = 0x40
	Incompat64Bit       Incompat = 0x80
	IncompatMMP         Incompat = 0x100
	IncompatFlexBG      Incompat = 0x200
	IncompatEAInode     Incompat = 0x400
	IncompatDirData     Incompat = 0x1000
	IncompatCsumSeed    Incompat = 0x2000
	IncompatLargeDir    Incompat = 0x4000
	IncompatInlineData  Incompat = 0x8000
	IncompatEncrypt     Incompat = 0x10000
	IncompatCasefold    Incompat = 0x20000
)

// ROCompat is s_feature_ro_compat: features that a driver must know to write.
type ROCompat uint32

const (
	ROCompatSparseSuper   ROCompat = 0x1
	ROCompatLargeFile     ROCompat = 0x2
	ROCompatBtreeDir      ROCompat = 0x4
	ROCompatHugeFile      ROCompat = 0x8
	ROCompatGDTCsum       ROCompat = 0x10
	ROCompatDirNlink      ROCompat = 0x20
	ROCompatExtraIsize    ROCompat = 0x40
	ROCompatHasSnapshot   ROCompat = 0x80
	ROCompatQuota         ROCompat = 0x100
	ROCompatBigalloc      ROCompat = 0x200
	ROCompatMetadataCsum  ROCompat = 0x400
	ROCompatReplica       ROCompat = 0x800
	ROCompatReadonly      ROCompat = 0x1000
	ROCompatProject       ROCompat = 0x2000
	ROCompatSharedBlocks  ROCompat = 0x4000
	ROCompatVerity        ROCompat = 0x8000
	ROCompatOrphanPresent ROCompat = 0x10000
)

// Feature names are those of mke2fs and dumpe2fs, by bit.
var (
	compatNames = [32]string{0: "dir_prealloc", 1: "imagic_inodes", 2: "has_journal", 3: "ext_attr", 4: "resize_inode",
		5: "dir_index", 6: "lazy_bg", 7: "snapshot_inode", 8: "snapshot_bitmap", 9: "sparse_super2", 10: "fast_commit",
		11: "stable_inodes", 12: "orphan_file"}
	incompatNames = [32]string{0: "compression", 1: "filetype", 2: "needs_recovery", 3: "journal_dev", 4: "meta_bg",
		6: "extent", 7: "64bit", 8: "mmp", 9: "flex_bg", 10: "ea_inode", 12: "dirdata", 13: "metadata_csum_seed",
		14: "large_dir", 15: "inline_data", 16: "encrypt", 17: "casefold"}
	roCompatNames = [32]string{0: "sparse_super", 1: "large_file", 2: "btree_dir", 3: "huge_file", 4: "uninit_bg",
		5: "dir_nlink", 6: "extra_isize", 7: "snapshot", 8: "quota", 9: "bigalloc", 10: "metadata_csum", 11: "replica",
		12: "read-only", 13: "project", 14: "shared_blocks", 15: "verity", 16: "orphan_present"}
)

// featureString names every bit of w, lowest first, separated by commas.
func featureString(w uint32, names *[32]string) string {
	var out []string
	for ; w != 0; w &= w - 1 {
		i := bits.TrailingZeros32(w)
		if names[i] != "" {
			out = append(out, names[i])
		} else {
			out = append(out, fmt.Sprintf("unknown feature %#x", uint32(1)<<i))
		}
	}
	return strings.Join(out, ", ")
}

func (f Compat) String() string   { return featureString(uint32(f), &compatNames) }
func (f Incompat) String() string { return featureString(uint32(f), &incompatNames) }
func (f ROCompat) String() string { return featureString(uint32(f), &roCompatNames) }

// Has says whether every bit of want is set.
func (f Compat) Has(want Compat) bool     { return f&want == want }
func (f Incompat) Has(want Incompat) bool { return f&want == want }
func (f ROCompat) Has(want ROCompat) bool { return f&want == want }
