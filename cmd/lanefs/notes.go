package main

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// Notes are what a mount tells the terminal beside that it answers: what the user did not ask for, and what to do about it. The log has
// them, too.

// notes are lines without an end.
func (d *daemon) notes() (all []string) {
	s, cfg := d.stack, d.cfg
	if why := d.readOnlyWhy(); why != "" {
		all = append(all, fmt.Sprintf("%q is mounted read-only: %s", cfg.Dir, why))
	}
	asked := cfg.Lanes
	if s.eng.CPULanes() > 0 {
		asked += cfg.CPULanes
	}
	if asked > s.eng.Lanes() {
		all = append(all, fmt.Sprintf("%q has %d lanes, not the %d that lanes= asks for: the controller has no more queue pairs, or the GPU keeps no more kernels",
			cfg.Dir, s.eng.Lanes(), asked))
	}
	if cfg.Depth > s.eng.Depth() {
		all = append(all, fmt.Sprintf("%q has %d commands in flight on a queue pair at most, not the %d that depth= asks for: the controller's queues hold no more",
			cfg.Dir, s.eng.Depth(), cfg.Depth))
	}
	var st unix.Stat_t
	if uid := os.Geteuid(); uid != 0 && !cfg.ReadOnly && unix.Stat(cfg.Dir, &st) == nil && st.Uid != uint32(uid) && unix.Access(cfg.Dir, unix.W_OK) == unix.EACCES {
		all = append(all, fmt.Sprintf("the root directory of the volume belongs to uid %d, so you cannot write to %q: mkfs.ext4 -E root_owner=%d:%d makes a volume that is yours",
			st.Uid, cfg.Dir, uid, os.Getegid()))
	}
	if limit := limitOfTime(cfg.Dir); limit != "" {
		all = append(all, limit)
	}
	if limit := limitOfMemory(); limit != "" {
		all = append(all, fmt.Sprintf("the daemon of %q %s, and ends where that is not enough", cfg.Dir, limit))
	}
	all = append(all, cfg.outgrows(media.MemoryRoom())...)
	for _, n := range all {
		d.log.Warn(n)
	}
	return all
}

// readOnlyWhy says why the volume is not writable although that was not asked for, and the remedy; empty if it is writable.
func (d *daemon) readOnlyWhy() string {
	if !d.use() {
		return ""
	}
	defer d.done()
	if d.cfg.ReadOnly || d.cfg.Raw || !d.stack.vol.ReadOnly() {
		return ""
	}
	if why := d.stack.vol.Inspect().Reasons; len(why) > 0 {
		return strings.Join(why, "; ")
	}
	return cmp.Or(d.stack.protection(), "the device cannot be written")
}
