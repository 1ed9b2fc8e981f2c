package engine

import (
	"fmt"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// checkMemory follows commands that have ended: what they wrote to memory with a keeper becomes visible there, and those fail whose memory
// was taken away meanwhile. Whose the memory is does not matter, nor who allocated it.
func (e *Engine) checkMemory(cmds []Command) {
	if !e.c.Kept() {
		return
	}
	type use struct {
		keeper gpu.Keeper
		wrote  bool
		err    error
	}
	var uses []use // one as a rule
	of := make([]int, len(cmds))
	for i := range cmds {
		of[i] = -1
		c := &cmds[i]
		if c.Err != nil || c.Len == 0 {
			continue
		}
		k := e.c.Keeper(c.Data)
		if k == nil {
			continue
		}
		n := 0
		for n < len(uses) && uses[n].keeper != k {
			n++
		}
		if n == len(uses) {
			uses = append(uses, use{keeper: k})
		}
		uses[n].wrote = uses[n].wrote || c.Op == nvme.IORead
		of[i] = n
	}
	for i := range uses {
		u := &uses[i]
		if u.err = u.keeper.Revoked(); u.err == nil && u.wrote {
			u.err = u.keeper.Arrived()
		}
	}
	for i, n := range of {
		if n >= 0 && uses[n].err != nil {
			cmds[i].Err = fmt.Errorf("nvme: %s: its data is lost: %w", &cmds[i], uses[n].err)
		}
	}
}
