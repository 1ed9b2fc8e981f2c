package volume

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// What this package knows. A volume with any other incompatible feature is refused, one with any other read-only
// compatible feature is mounted read-only ([layout] Super Block, feature tables).
const (
	knownIncompat = disk.IncompatFiletype | disk.IncompatRecover | disk.IncompatMetaBG | disk.IncompatExtents |
		disk.Incompat64Bit | disk.IncompatFlexBG | disk.IncompatEAInode | disk.IncompatCsumSeed |
		disk.IncompatLargeDir | disk.IncompatInlineData
	writableROCompat = disk.ROCompatSparseSuper | disk.ROCompatLargeFile | disk.ROCompatBtreeDir |
		disk.ROCompatHugeFile | disk.ROCompatGDTCsum | disk.ROCompatDirNlink | disk.ROCompatExtraIsize |
		disk.ROCompatMetadataCsum | disk.ROCompatProject | disk.ROCompatOrphanPresent
)

// Refusal says why a volume with the features of sb cannot be read, nil if it can.
func Refusal(sb *disk.Superblock) error {
	if bad := sb.FeatureIncompat &^ knownIncompat; bad != 0 {
		return fmt.Errorf("the volume has the feature %v, which LaneFS does not know: mount it with the kernel's ext4", bad)
	}
	if sb.FeatureROCompat.Has(disk.ROCompatMetadataCsum | disk.ROCompatGDTCsum) {
		return errors.New("the volume has both metadata_csum and uninit_bg: run e2fsck on it")
	}
	return nil
}

// Unwritable is what keeps a volume with the features of sb from being written, 0 if nothing does.
func Unwritable(sb *disk.Superblock) disk.ROCompat { return sb.FeatureROCompat &^ writableROCompat }

// checkFeatures refuses what cannot be read and turns ro on for what cannot be written.
func checkFeatures(sb *disk.Superblock, ro *bool, log *slog.Logger) error {
	if err := Refusal(sb); err != nil {
		return err
	}
	if bad := Unwritable(sb); bad != 0 && !*ro {
		log.Warn("the volume has a feature that LaneFS cannot write: mounted read-only", "feature", bad)
		*ro = true
	}
	return nil
}

// Support is what becomes of a volume that has a feature.
type Support string

const (
	ReadWrite Support = "read-write"
	ReadOnly  Support = "read-only"
	Refused   Support = "refused"
)

// Feature is a feature of ext4 volumes.
type Feature struct {
	Word    string  `json:"word"` // of the superblock: compat, incompat, ro_compat
	Name    string  `json:"name"` // as dumpe2fs has it
	Flag    uint32  `json:"flag"`
	Support Support `json:"support"`
}

// AllFeatures lists the features that have a name.
func AllFeatures() (out []Feature) {
	for _, f := range Features(^disk.Compat(0), ^disk.Incompat(0), ^disk.ROCompat(0)) {
		if !strings.HasPrefix(f.Name, "unknown") {
			out = append(out, f)
		}
	}
	return out
}

// Features lists those that the three words have.
func Features(c disk.Compat, i disk.Incompat, r disk.ROCompat) (out []Feature) {
	for bit := range 32 {
		if f := c & (1 << bit); f != 0 {
			out = append(out, Feature{"compat", f.String(), uint32(f), ReadWrite}) // an unknown one may be ignored
		}
	}
	for bit := range 32 {
		if f := i & (1 << bit); f != 0 {
			out = append(out, Feature{"incompat", f.String(), uint32(f), pick(f&knownIncompat != 0, Refused)})
		}
	}
	for bit := range 32 {
		if f := r & (1 << bit); f != 0 {
			out = append(out, Feature{"ro_compat", f.String(), uint32(f), pick(f&writableROCompat != 0, ReadOnly)})
		}
	}
	return out
}

func pick(known bool, otherwise Support) Support {
	if known {
		return ReadWrite
	}
	return otherwise
}
