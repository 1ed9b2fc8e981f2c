package jbd2

import (
	"errors"
	"fmt"
)

var (
	// ErrAborted is what every operation reports once a commit has failed; it wraps the cause.
	ErrAborted = errors.New("journal aborted")
	// ErrClosed is reported after Close.
	ErrClosed = errors.New("journal closed")
	// ErrTooLarge is reported by Begin when the credits exceed what one transaction can hold.
	ErrTooLarge = errors.New("operation too large for one transaction")
	// ErrCorrupt is reported when the journal on the medium is not what its format allows.
	ErrCorrupt = errors.New("journal is corrupt")
	// ErrUnsupported is reported for journals with features that this package does not know.
	ErrUnsupported = errors.New("journal not supported")
)

// ReadError is the failure of the device to read a metadata block.
type ReadError struct {
	Block Block
	Err   error
}

func (e *ReadError) Error() string { return fmt.Sprintf("metadata block %d: %v", e.Block, e.Err) }
func (e *ReadError) Unwrap() error { return e.Err }

// abortError is ErrAborted together with what caused it.
type abortError struct{ cause error }

func (e *abortError) Error() string   { return fmt.Sprintf("%v: %v", ErrAborted, e.cause) }
func (e *abortError) Unwrap() []error { return []error{ErrAborted, e.cause} }
