package blockdev

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWorse: a request of several parts, or a call of several requests, that meets more than a refusal must not look as if nothing had gone wrong.
func TestWorse(t *testing.T) {
	full, protected, other := fmt.Errorf("x: %w", ErrNoSpace), fmt.Errorf("y: %w", ErrReadOnly), errors.New("z")
	order := []error{nil, full, protected, other}
	for i, a := range order {
		for k, b := range order {
			require.Equal(t, order[max(i, k)], Worse(a, b), "%v, %v", a, b)
		}
	}
	require.Equal(t, other, Worse(other, errors.New("later")))
}
