package copyengine

import (
	"errors"

	"github.com/lanefs/lanefs/gpu"
)

// writeAllStage is how many bytes WriteAll takes along before it waits.
const writeAllStage = 1 << 20

// WriteAll copies each of from to the offset of m at the same place in at, the small ones together by way of a stage, and returns when they have
// arrived. When it returns an error any of them may be missing.
func (e *Engine) WriteAll(m gpu.Memory, at []int64, from [][]byte) error {
	stage, err := e.Stage(writeAllStage)
	if err != nil {
		return err
	}
	p, err := e.Pipe()
	if err != nil {
		e.Unstage(stage)
		return err
	}
	used := int64(0)
	for i, b := range from {
		n := int64(len(b))
		if n >= gatherLarge {
			if err = p.Write(m, at[i], b); err != nil {
				break
			}
			continue
		}
		place := (used+15)&^15 + at[i]&15 // where the kernel moves 16 bytes at a time
		if place+n > writeAllStage {
			if err = p.Wait(); err != nil {
				break
			}
			place = at[i] & 15
		}
		copy(stage[place:], b)
		used = place + n
		if err = p.Write(m, at[i], stage[place:used]); err != nil {
			break
		}
	}
	err = errors.Join(err, p.Close())
	if !errors.Is(err, ErrStuck) { // else the device may read it yet
		e.Unstage(stage)
	}
	return err
}
