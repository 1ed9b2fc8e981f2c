package image

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"github.com/lanefs/lanefs/lab/internal/drive"
)

// Check returns an error with e2fsck's output unless e2fsck -fn finds nothing wrong.
func Check(path string) error {
	_, err := drive.Run("e2fsck", "-fn", path)
	return err
}

// Repairs is what e2fsck -fy did to an image.
type Repairs struct {
	Output    string
	Damage    bool            // it repaired more than what a loss of power leaves
	Truncated map[uint64]bool // inodes whose truncation it finished
}

// Repair recovers an image with e2fsck -fy. It may replay the journal and finish orphans; what else it repairs is damage,
// unless its output matches one of allowed.
//
// e2fsck 1.47, when it finishes a truncation, drops the inode's attribute block as if the inode were deleted and does not
// count it in i_blocks. It finds that miscount itself in the same run, which is not damage. The attributes are lost:
// Truncated lists those inodes.
func Repair(path string, allowed ...*regexp.Regexp) (Repairs, error) {
	out, err := drive.Run("e2fsck", "-fy", path)
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) { // 1: file system errors corrected
		return Repairs{}, err
	}
	r := Repairs{Output: out, Truncated: map[uint64]bool{}}
	rest := ordinary.ReplaceAllString(out, "")
	for _, m := range truncating.FindAllStringSubmatch(out, -1) {
		ino, err := strconv.ParseUint(m[1], 10, 64)
		if err != nil {
			return r, fmt.Errorf("e2fsck: %w in:\n%s", err, out)
		}
		r.Truncated[ino] = true
		rest = regexp.MustCompile(`Inode `+m[1]+`, i_blocks is \d+, should be \d+\.  Fix\? yes\n`).ReplaceAllString(rest, "")
	}
	for _, a := range allowed {
		rest = a.ReplaceAllString(rest, "")
	}
	r.Damage = strings.Contains(rest, "? yes")
	return r, nil
}

var truncating = regexp.MustCompile(`Truncating orphaned inode (\d+) `)

// ordinary is what e2fsck also repairs where nothing is wrong: the orphan file's feature is set as long as a volume is
// mounted, and e2fsck finishes orphans before it clears the file; and extent trees could be narrower.
var ordinary = regexp.MustCompile(`(Feature orphan_present is set but orphan file is clean|Orphan file \(inode \d+\) block \d+ is not clean)\.\nClear\? yes\n|.* Optimize\? yes\n`)
