package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// output is the standard output of a command. It keeps the first error of a write: what is printed by fmt and by tables returns none, and a command whose output is
// not there has not done what it says.
type output struct {
	file *os.File
	mu   sync.Mutex
	err  error // protected by mu
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.file.Write(p)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.err == nil {
			o.err = err
		}
	}
	return n, err
}

// failed is why not all was written.
func (o *output) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return nil
	}
	return fmt.Errorf("the standard output cannot be written: %w", reason(o.err))
}

// with is err, and the error of the output unless that is err already. A status that err asks for stays.
func (o *output) with(err error) error {
	failed := o.failed()
	var e *exitError
	switch {
	case failed == nil:
		return err
	case errors.As(err, &e) && e.err == nil:
		return &exitError{e.status, failed}
	case err == nil || errors.Is(err, errors.Unwrap(failed)):
		return failed
	}
	return errors.Join(err, failed)
}

// outputFile is the file that w writes to, nil if it writes to none.
func outputFile(w io.Writer) *os.File {
	switch w := w.(type) {
	case *output:
		return w.file
	case *os.File:
		return w
	}
	return nil
}
