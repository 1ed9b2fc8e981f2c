package xattr

import "slices"

// Set is the attributes of one file by where they lie.
type Set struct {
	Body, Block []Attr
	format      *Format
	bodySize    int
}

// Get finds an attribute.
func (s *Set) Get(index uint8, name string) (Attr, error) {
	for _, part := range [...][]Attr{s.Body, s.Block} {
		if i := at(part, index, name); i >= 0 {
			return part[i], nil
		}
	}
	return Attr{}, ErrNotExist
}

func at(attrs []Attr, index uint8, name string) int {
	return slices.IndexFunc(attrs, func(a Attr) bool { return a.Index == index && a.Name == name })
}

// Names lists the full names of the attributes that are shown.
func (s *Set) Names() []string {
	var out []string
	for _, part := range [...][]Attr{s.Body, s.Block} {
		for i := range part {
			if n := part[i].FullName(); n != "" {
				out = append(out, n)
			}
		}
	}
	return out
}

// Condition of Put, as in setxattr(2).
type Condition uint8

const (
	Always     Condition = iota
	MustCreate           // ErrExist if the attribute exists
	MustExist            // ErrNotExist if it does not
)

// Put sets an attribute: in the body if there is room, else in the block. old is what it replaces: if its value has an
// inode of its own, that loses a reference. The error is ErrNoSpace if there is room in neither, and then nothing
// changed.
func (s *Set) Put(a Attr, c Condition) (old *Attr, err error) {
	if len(a.Name) > MaxName {
		return nil, ErrNoSpace
	}
	cur, err := s.Get(a.Index, a.Name)
	switch {
	case err == nil && c == MustCreate:
		return nil, ErrExist
	case err != nil && c == MustExist:
		return nil, ErrNotExist
	case err == nil:
		old = &cur
	}
	body, block := without(s.Body, a.Index, a.Name), without(s.Block, a.Index, a.Name)
	switch {
	case space(body)+a.space() <= s.bodySize:
		body = append(body, a)
	case space(block)+a.space() <= s.format.blockSize-blockHeader-endSize:
		block = append(block, a)
	default:
		return nil, ErrNoSpace
	}
	s.Body, s.Block = body, block
	return old, nil
}

// Delete removes an attribute and gives it.
func (s *Set) Delete(index uint8, name string) (Attr, error) {
	a, err := s.Get(index, name)
	if err == nil {
		s.Body, s.Block = without(s.Body, index, name), without(s.Block, index, name)
	}
	return a, err
}

// without is a copy of attrs that lacks one.
func without(attrs []Attr, index uint8, name string) []Attr {
	return slices.DeleteFunc(slices.Clone(attrs), func(a Attr) bool { return a.Index == index && a.Name == name })
}

func space(attrs []Attr) (n int) {
	for i := range attrs {
		n += attrs[i].space()
	}
	return n
}
