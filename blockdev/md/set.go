package md

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lanefs/lanefs/blockdev"
)

// member is a Member with what it says.
type member struct {
	Member
	super *Superblock
}

// set is the members of one array, by their roles.
type set []member

// newSet reads the members' metadata, in any order, and refuses what is not exactly one array that LaneFS can assemble.
func newSet(given []Member) (set, error) {
	if len(given) == 0 {
		return nil, errors.New("an md array needs members")
	}
	var all set
	for _, m := range given {
		s, err := Find(m.Dev)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
		if s == nil {
			return nil, fmt.Errorf("%s has no md metadata (1.0, 1.1 or 1.2): only the members of one array are mounted together", m.Name)
		}
		all = append(all, member{m, s})
	}
	if err := all.together(); err != nil {
		return nil, err
	}
	for _, m := range all {
		if err := m.usable(); err != nil {
			return nil, err
		}
	}
	return all.complete()
}

// Refuse says why the array that s is of is none that LaneFS assembles; nil: it is one.
func (s *Superblock) Refuse() error {
	kernel := "; have the kernel assemble it (mdadm --assemble), and mount the block device"
	switch f := s.Features; {
	case s.Level != levelRAID0 && s.Level != levelLinear:
		return fmt.Errorf("%s is of level %s, and LaneFS assembles raid0 and linear%s", s.Array(), s.LevelName(), kernel)
	case f&(featureReshape|featureBackwards|featureNewOffset) != 0:
		return fmt.Errorf("%s is being reshaped: let mdadm finish that first", s.Array())
	case f&(featureJournal|featurePPL|featureMultiplePPLs) != 0:
		return fmt.Errorf("%s has a journal%s", s.Array(), kernel)
	case f&(featureRecovery|featureReplacement) != 0:
		return fmt.Errorf("%s is being rebuilt: let mdadm finish that first", s.Array())
	case f&featureRAID0Layout != 0 && s.Level != levelRAID0:
		return fmt.Errorf("%s is of level %s, and its metadata has the layout of a raid0", s.Array(), s.LevelName())
	case f&^(featureBitmap|featureBadBlocks|featureRAID0Layout) != 0:
		return fmt.Errorf("%s has features that LaneFS does not know (%#x)%s", s.Array(), f, kernel)
	case s.Disks == 0 || s.Disks > maxRoles:
		return fmt.Errorf("%s says that it has %d members", s.Array(), s.Disks)
	case s.Level == levelRAID0 && s.Chunk == 0:
		return fmt.Errorf("%s says that its chunks are empty", s.Array())
	}
	return nil
}

// together says whether all are of one array.
func (all set) together() error {
	first := all[0]
	for _, m := range all[1:] {
		a, b := first.super, m.super
		if a.Set != b.Set {
			return fmt.Errorf("%s belongs to %s, and %s to %s: only the members of one array are mounted together", first.Name, a.Array(), m.Name, b.Array())
		}
	}
	if err := first.super.Refuse(); err != nil {
		return err
	}
	for _, m := range all[1:] {
		a, b := first.super, m.super
		if a.Level != b.Level || a.Layout != b.Layout || a.Chunk != b.Chunk || a.Disks != b.Disks || a.Features&featureRAID0Layout != b.Features&featureRAID0Layout {
			return fmt.Errorf("%s and %s say different things of %s: %s with %d members in chunks of %d sectors, layout %d, and %s with %d, %d, %d; mdadm --examine shows both",
				first.Name, m.Name, a.Array(), a.LevelName(), a.Disks, a.Chunk, a.Layout, b.LevelName(), b.Disks, b.Chunk, b.Layout)
		}
		if err := b.Refuse(); err != nil {
			return err
		}
	}
	return nil
}

// usable says whether the member can be one.
func (m *member) usable() error {
	s, i := m.super, m.Dev.Info()
	switch r := s.role(); {
	case r == roleSpare:
		return fmt.Errorf("%s is a spare of %s, and no member", m.Name, s.Array())
	case r == roleFaulty:
		return fmt.Errorf("%s is a faulty member of %s: mdadm --examine %s says more", m.Name, s.Array(), m.Name)
	case r == roleJournal:
		return fmt.Errorf("%s is the journal of %s", m.Name, s.Array())
	case uint32(r) >= s.Disks:
		return fmt.Errorf("%s says that it is member %d of %s, which has %d", m.Name, r, s.Array(), s.Disks)
	}
	end, at := i.Size(), start(s.Minor, i.Size())
	if s.Minor == 0 {
		end = at
	}
	sectors := uint64(end / sector)
	if s.DataOffset > sectors || s.DataSize > sectors-s.DataOffset {
		return fmt.Errorf("%s says that it has %d sectors of data from sector %d on, and there are %d: is the device shorter than it was?", m.Name, s.DataSize, s.DataOffset, sectors)
	}
	if s.Minor > 0 && s.DataOffset*sector < uint64(at)+rolesAt+2*uint64(len(s.roles)) {
		return fmt.Errorf("%s says that its data begin at sector %d, in its md superblock", m.Name, s.DataOffset)
	}
	return nil
}

// complete orders the members by their roles, and refuses a set with gaps, with one twice, or with one that was left behind.
func (all set) complete() (set, error) {
	s := all[0].super
	byRole := make(set, s.Disks)
	for _, m := range all {
		at := &byRole[m.super.role()]
		if at.Dev != nil {
			return nil, fmt.Errorf("%s and %s are both member %d of %s: leave out the one that is a copy", at.Name, m.Name, m.super.role(), s.Array())
		}
		*at = m
	}
	var missing []string
	for role, m := range byRole {
		if m.Dev == nil {
			missing = append(missing, fmt.Sprint(role))
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%s has %d members, and number %s is missing: name all of them, separated by commas; a %s does not run without one",
			s.Array(), s.Disks, strings.Join(missing, ", "), s.LevelName())
	}
	newest := slices.MaxFunc(byRole, func(a, b member) int { return cmp.Compare(a.super.Events, b.super.Events) })
	for _, m := range byRole {
		if m.super.Events+1 < newest.super.Events {
			return nil, fmt.Errorf("%s was left behind by %s: it has seen %d events, and %s %d; mdadm --examine says more", m.Name, s.Array(), m.super.Events, newest.Name, newest.super.Events)
		}
	}
	return byRole, nil
}

// block is the array's logical block.
func (all set) block() blockdev.Bytes {
	var n blockdev.Bytes
	for _, m := range all {
		n = max(n, m.Dev.Info().BlockSize)
		if b := blockdev.Bytes(m.super.Block); b&(b-1) == 0 && b <= 64<<10 {
			n = max(n, b)
		}
	}
	return n
}
