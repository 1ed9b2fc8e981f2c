package cuda

import (
	"errors"

	"github.com/lanefs/lanefs/gpu/internal/driver"
)

// What another device writes into a GPU's memory by peer-to-peer DMA is seen by kernels that start later, not by one that runs; unless the
// GPU orders such writes (CUDA driver API, CUGPUDirectRDMAWritesOrdering).

// arrived is driver.Config's, nil for a device that needs none.
func (l *library) arrived(dev int32) func(*driver.Device) error {
	// A driver before CUDA 11.3 knows neither attribute.
	a, err := l.attributes(dev, attrOrdering, attrFlushOptions)
	switch {
	case err == nil && a[attrOrdering] >= orderedToOwner:
		return nil
	case err != nil || a[attrFlushOptions]&flushByHost == 0 || !l.flushWrites.Have():
		return func(*driver.Device) error { return errNoFlush }
	}
	return func(d *driver.Device) error { return d.Do(l.flushWrites, flushContext, flushToOwner) }
}

var errNoFlush = errors.New("neither orders the GPU such writes, nor can its driver flush them")
