package namespace

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/lanefs/lanefs/blockdev"
)

// Full counts the writes for which the medium had no room (blockdev.ErrNoSpace).
type Full struct {
	Refused uint64    // writes, since the device was opened
	Since   time.Time // when the present shortage began; zero: there is none
	Last    string    // the last such error
}

// roomAgain is how long no write must be refused until the shortage counts as over. jbd2 retries held commits more often than that.
const roomAgain = 10 * time.Second

// fullness keeps Full, and logs the beginning and the end of each shortage.
type fullness struct {
	log   *slog.Logger
	pause time.Duration

	mu    sync.Mutex
	now   Full        // protected by mu, as is all below
	begun uint64      // now.Refused when it began
	timer *time.Timer // runs while Since is set
	ended bool        // by close
}

// note counts err if it is ErrNoSpace.
func (f *fullness) note(err error) {
	if !errors.Is(err, blockdev.ErrNoSpace) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now.Refused++
	f.now.Last = err.Error()
	if f.ended {
		return
	}
	if !f.now.Since.IsZero() {
		f.timer.Reset(f.pause)
		return
	}
	f.now.Since, f.begun = time.Now(), f.now.Refused-1
	f.timer = time.AfterFunc(f.pause, f.over)
	f.log.Warn("the backing store is full: writes are refused or wait until there is room", "err", err)
}

// over ends a shortage.
func (f *fullness) over() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now.Since.IsZero() || f.ended {
		return
	}
	f.log.Warn("the backing store has refused no write for a while", "while", f.pause, "refused", f.now.Refused-f.begun, "since", f.now.Since)
	f.now.Since = time.Time{}
}

func (f *fullness) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	if f.timer != nil {
		f.timer.Stop()
	}
}

// Full reports writes for which the medium had no room.
func (d *Namespace) Full() Full {
	d.full.mu.Lock()
	defer d.full.mu.Unlock()
	return d.full.now
}
