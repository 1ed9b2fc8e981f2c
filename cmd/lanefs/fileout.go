package main

import (
	"fmt"
	"io"
	"os"
)

// What a command writes beside its output (bench's drawing, prove's report, a trace) must not take the place of what is no such thing: a name too many,
// or in the wrong place, would be DEVICE itself, the file of a loop device, or a disk. So a file that is there is written over only if it is
// empty, or begins as one of its kind does.

// mayWrite says why a file that begins so may not be written at name. It creates nothing and changes nothing.
func mayWrite(name, begins string) error {
	st, err := os.Stat(name)
	if err != nil {
		return nil // it is not there, or creating it will say why not
	}
	switch {
	case isBlock(st):
		return fmt.Errorf("%q is a block device: name a file to be written", name)
	case !st.Mode().IsRegular() || st.Size() == 0:
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("%q cannot be looked at, so it is not written over: %w", name, reason(err))
	}
	defer f.Close()
	head := make([]byte, len(begins))
	if _, err := io.ReadFull(f, head); err != nil || string(head) != begins {
		return fmt.Errorf("%q is there, and begins with something else than %q: name another file, or remove it", name, begins)
	}
	return nil
}
