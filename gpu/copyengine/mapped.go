package copyengine

import (
	"fmt"

	"github.com/lanefs/lanefs/gpu/fault"
)

// copyMapped copies from memory that may be a file's: it has no bytes where the file was truncated.
func copyMapped(dst, src []byte) error {
	if err := fault.Guard(func() { copy(dst, src) }); err != nil {
		return fmt.Errorf("copying %d bytes: %w", len(src), err)
	}
	return nil
}
