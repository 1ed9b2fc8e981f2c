package xattr

// This file is about attributes that must be in the body: system.data, the rest of inline data.

// BodyRoom is how many bytes of value an attribute can have in the body besides all others, -1 if there is no room even
// for an empty one.
func (s *Set) BodyRoom(index uint8, name string) int {
	a := Attr{Index: index, Name: name}
	return max(s.bodySize-space(without(s.Body, index, name))-a.space(), -1)
}

// PutBody sets an attribute in the body, wherever it was before. It reports false if there is no room, and then nothing
// changed.
func (s *Set) PutBody(a Attr) bool {
	if pad(len(a.Value)) > s.BodyRoom(a.Index, a.Name) {
		return false
	}
	s.Body = append(without(s.Body, a.Index, a.Name), a)
	s.Block = without(s.Block, a.Index, a.Name)
	return true
}
