package main

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/mountopt"
)

// A volume on an md array whose members nobody but us has, as on bound functions, has no block device that a tag could be of. So members are put together
// by what they say of themselves, the array is assembled, and what is on it is read. Such a place is named by its members, as on the command line: ADDR,ADDR.

// arraysOf are the tags of what is on the arrays whose members are among all. why says what of an array is not there, or not as it must be.
func arraysOf(all []tagged) (found []tagged, why []error) {
	var sets [][]tagged
	for _, t := range all {
		if t.member == nil {
			continue
		}
		k := slices.IndexFunc(sets, func(s []tagged) bool { return s[0].member.Set == t.member.Set })
		if k < 0 {
			k, sets = len(sets), append(sets, nil)
		}
		sets[k] = append(sets[k], t)
	}
	for _, set := range sets {
		there, err := tagsOfArray(set)
		if err != nil {
			why = append(why, fmt.Errorf("no array is made of %s: %w", arrayName(set, 0), err))
		}
		found = append(found, there...)
	}
	return found, why
}

// tagsOfArray assembles an array, and reads what is on it.
func tagsOfArray(set []tagged) (all []tagged, err error) {
	super := set[0].member
	if err := super.Refuse(); err != nil {
		return nil, err
	}
	cfg := askOnly()
	for _, t := range set {
		if err := alone(cfg.Members, t.where); err != nil {
			return nil, err
		}
		cfg.Members = append(cfg.Members, t.where)
	}
	if len(set) == 1 {
		cfg.use(set[0].where) // which is all of an array of one
	}
	s, err := openDevice(&cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	w := where{Device: arrayName(set, 0)}
	ids := []string{"md-uuid-" + super.UUID()}
	if super.Name != "" {
		ids = append(ids, "md-name-"+plainID(super.Name))
	}
	for _, t := range named(tagsOn(s.array, w), w, ids) {
		switch {
		case t.member != nil: // of an array of arrays, which LaneFS does not assemble
			continue
		case len(set) > 1:
			t.where = where{Device: arrayName(set, t.Part)}
		case t.Part > 0: // it has no name: ADDR-partN is a partition of the member
			continue
		default:
			t.where = set[0].where
			t.where.Array = true
		}
		all = append(all, t)
	}
	return all, s.Close()
}

// arrayName is how the command line names an array, or a partition of it.
func arrayName(set []tagged, part int) string {
	var names []string
	for _, t := range set {
		names = append(names, t.String())
	}
	if part > 0 {
		names = append(names, fmt.Sprintf("p%d", part))
	}
	return strings.Join(names, ",")
}

// askOnly is the configuration of a device that is opened to be asked what it has.
func askOnly() mountConfig {
	cfg := mountConfig{Config: mountopt.Default()}
	cfg.GPU, cfg.ReadOnly, cfg.Lanes = "host", true, 1
	return cfg
}
