package engine

import (
	"fmt"
	"slices"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// settle precedes commands: what the CPU has stored where they read has arrived there (controller.StoredBy). A command whose data has not fails, and with it the call.
func (e *Engine) settle(cmds []Command) error {
	if !e.c.Kept() {
		return nil
	}
	var told []gpu.Keeper // one as a rule
	for i := range cmds {
		c := &cmds[i]
		if c.Len == 0 || c.Op == nvme.IORead {
			continue
		}
		k := e.c.StoredBy(c.Data)
		if k == nil || slices.Contains(told, k) {
			continue
		}
		if err := k.Arrived(); err != nil {
			c.Err = fmt.Errorf("nvme: %s: its data has not arrived: %w", c, err)
			return c.Err
		}
		told = append(told, k)
	}
	return nil
}

// checkMemory follows commands that have ended: what they wrote has arrived, though their completions went elsewhere (controller.Land); in memory with a keeper
// it becomes visible; and those fail whose memory was taken away meanwhile. Whose the memory is does not matter, nor who allocated it.
func (e *Engine) checkMemory(cmds []Command) {
	if !e.c.Kept() {
		return
	}
	type use struct {
		reach gpu.Reach
		wrote bool
		err   error
	}
	var uses []use // one as a rule
	of := make([]int, len(cmds))
	for i := range cmds {
		of[i] = -1
		c := &cmds[i]
		if c.Err != nil || c.Len == 0 {
			continue
		}
		r, ok := e.c.KeptAt(c.Data)
		if !ok {
			continue
		}
		n := 0
		for n < len(uses) && uses[n].reach != r {
			n++
		}
		if n == len(uses) {
			uses = append(uses, use{reach: r})
		}
		uses[n].wrote = uses[n].wrote || c.Op == nvme.IORead
		of[i] = n
	}
	completions, landed := *e.completions.Load(), false
	for i := range uses {
		u := &uses[i]
		if u.wrote && !landed && u.reach.Apart(completions) {
			u.err = e.c.Land()
			landed = u.err == nil
		}
		k := u.reach.Keeper
		if u.err != nil || k == nil {
			continue
		}
		if u.err = k.Revoked(); u.err == nil && u.wrote {
			u.err = k.Arrived()
		}
	}
	for i, n := range of {
		if n >= 0 && uses[n].err != nil {
			cmds[i].Err = fmt.Errorf("nvme: %s: its data is lost: %w", &cmds[i], uses[n].err)
		}
	}
}
