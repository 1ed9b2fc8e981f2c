package ext4

import (
	"errors"

	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// Held is what keeps changes from being committed, nil if nothing does: the medium has no room, or there is no memory. See
// jbd2.Held.
func (v *FS) Held() *jbd2.Held { return v.jnl.Held() }

// Settle makes everything durable, and writes home what the log holds, as Close does, while the volume goes on. An error says that
// Close would leave something behind: what was not committed would be lost, and what the log holds is for the next mount to recover.
func (v *FS) Settle() (err error) {
	defer v.noteTo(&err)
	if v.readOnly.Load() {
		return nil
	}
	return errors.Join(v.settleAllAccess(), v.jnl.Checkpoint())
}
