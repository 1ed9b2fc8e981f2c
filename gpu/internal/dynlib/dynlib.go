// Package dynlib is a vendor's shared library, opened at run time: a Library and the Symbols that are bound to its functions.
//
// Nothing of the vendor is linked: a machine without the library runs the same binary, and the error says what is
// missing. Functions that every supported version has are required; newer ones are optional and say what is lost
// without them.
package dynlib

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ebitengine/purego"
)

// Symbol is one function to bind.
type Symbol struct {
	Name  string
	Addr  *uintptr // receives the address, 0 if the library lacks an optional function
	Since string   // version that brought it, empty for what every supported version has
	For   string   // what cannot be done without it; empty: nothing can, it is required
}

// Library is an open shared library. It stays open for the life of the process: its threads outlive any Close.
type Library struct {
	Path    string
	Missing []string // optional functions that it lacks, a sentence each
	handle  uintptr
}

// ErrNotInstalled is wrapped by Open's error when the library is not there at all.
var ErrNotInstalled = errors.New("not installed")

// Open opens the first of the names that is there.
func Open(names ...string) (*Library, error) {
	var why []string // a library that is there and does not load: what it needs may be missing
	for _, name := range names {
		h, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err == nil {
			return &Library{Path: name, handle: h}, nil
		}
		if text := err.Error(); text != "" && !strings.HasPrefix(text, name+": cannot open shared object file") {
			why = append(why, text)
		}
	}
	if len(why) > 0 {
		return nil, fmt.Errorf("%s: %w (%s)", names[0], ErrNotInstalled, strings.Join(why, "; "))
	}
	return nil, fmt.Errorf("%s: %w", names[0], ErrNotInstalled)
}

// Bind looks the functions up. It fails on the first required one that is missing; version is what the library calls
// itself, for the sentences about optional ones.
func (l *Library) Bind(version string, symbols []Symbol) error {
	for _, s := range symbols {
		a, err := purego.Dlsym(l.handle, s.Name)
		if err == nil && a != 0 {
			*s.Addr = a
			continue
		}
		*s.Addr = 0
		if s.For == "" {
			return fmt.Errorf("%s (%s) has no %s: it is too old, or not the library it seems to be", l.Path, version, s.Name)
		}
		l.Missing = append(l.Missing, fmt.Sprintf("%s: needs %s, found %s; %s", s.Name, s.Since, version, s.For))
	}
	return nil
}
