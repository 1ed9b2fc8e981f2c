package ext4

import (
	"fmt"

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

// checkFeatures refuses what cannot be read and turns ro on for what cannot be written.
func checkFeatures(sb *disk.Superblock, ro *bool, logf func(string, ...any)) error {
	if bad := sb.FeatureIncompat &^ knownIncompat; bad != 0 {
		return fmt.Errorf("the volume has the feature %v, which LaneFS does not know: mount it with the kernel's ext4", bad)
	}
	if sb.FeatureROCompat.Has(disk.ROCompatMetadataCsum | disk.ROCompatGDTCsum) {
		return fmt.Errorf("the volume has both metadata_csum and uninit_bg: run e2fsck on it")
	}
	if bad := sb.FeatureROCompat &^ writableROCompat; bad != 0 && !*ro {
		logf("the volume has the feature %v, which LaneFS cannot write: mounted read-only", bad)
		*ro = true
	}
	return nil
}
