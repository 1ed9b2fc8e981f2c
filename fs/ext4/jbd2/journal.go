package jbd2

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/blockdev/latency"
	"github.com/lanefs/lanefs/gpu/thread"
)

const (
	// DefaultCommitInterval is how long a change may wait for its commit.
	DefaultCommitInterval = 5 * time.Second

	// maxTransactionBytes bounds a transaction, and with it the time that the gate is closed.
	maxTransactionBytes = 32 << 20
)

// Config of Open.
type Config struct {
	// Interval is the longest time between a change and its commit, 0: DefaultCommitInterval.
	Interval time.Duration
	// Log gets what the administrator should know, once. nil: discard.
	Log *slog.Logger
	// BeforeCommit runs with the gate closed, before the dirty buffers are copied: a place to bring up to date what need
	// not be so at every moment, such as counters in the superblock. h is valid during the call; its credits are
	// BeforeCommitCredits. It must not Begin, and must not wait for locks that are held across Begin.
	BeforeCommit        func(h *Handle)
	BeforeCommitCredits int
	// Home hears from each checkpoint how many of its blocks are written home. nil: nobody listens. It must not wait.
	Home func(done, total int)
	// Measure begins to time a commit, from its first try to its end. nil: none is timed.
	Measure func() latency.Op
}

// Journal makes changes of metadata atomic and durable. All methods may be called from any goroutine.
type Journal struct {
	cache   *Cache
	cfg     Config
	max     int // blocks that a transaction may take, as sink.blocks counts
	credits int // most credits of one handle
	sink    sink

	mu         sync.Mutex
	gate       *thread.Cond // Begin waits here
	idle       *thread.Cond // who commits waits here for the last handle
	work       *sync.Cond   // the committer waits here for something to do
	mark       *sync.Cond   // waits for the mark of an abort are here
	busy       bool         // protected by mu: someone does what taskLocked says
	running    *transaction // protected by mu; nil until a handle is begun
	committing *transaction // protected by mu
	closing    bool         // protected by mu: the gate is closed
	next       TID          // protected by mu: of the next transaction
	committed  TID          // protected by mu: the latest durable transaction
	wanted     TID          // protected by mu: commit up to this one
	err        error        // protected by mu: ErrAborted or ErrClosed, for ever
	failed     bool         // protected by mu: see Fail
	marking    bool         // protected by mu: the mark is being written, or was
	marked     bool         // protected by mu: the mark is written, or could not be; or the committer has ended
	lost       []*Buffer    // protected by mu: dirty, but will not be written
	held       *hold        // protected by mu: the commit that waits for room or memory, nil if none does
	again      bool         // protected by mu: it is to be tried again
	tries      uint64       // protected by mu: how many have failed in that way
	retry      time.Duration
	staged     atomic.Bool // there is staging memory for a transaction
	quit       bool        // protected by mu
	stopped    chan struct{}
}

// transaction is what is committed together. Its fields are protected by Journal.mu until the gate is closed on it, and
// belong to who commits from then on, but for done and waiters.
type transaction struct {
	tid      TID
	open     int // handles
	reserved int // credits of open handles not used yet
	dirty    map[Block]*Buffer
	revoked  map[Block]struct{}
	onCommit []func()
	timer    *time.Timer // runs once there is something to commit
	done     thread.Cond // waits for its commit are here; its lock is Journal.mu
	waiters  int         // how many; protected by Journal.mu
}

// sink is where a transaction goes: home, or to the log.
type sink interface {
	// prepare sees to it that freeze will have memory for n blocks.
	prepare(n int) error
	// freeze copies the dirty buffers of t. The gate is closed. After an error nothing is copied.
	freeze(t *transaction) error
	// commit makes t durable. The gate is open again. On success the sink has taken over the references that t.dirty
	// holds. After an error that passes it may be called again.
	commit(t *transaction) error
	// giveUp releases what freeze has copied.
	giveUp()
	// blocks is how many blocks of the transaction's limit so many dirty and revoked blocks take.
	blocks(dirty, revoked int) int
	// capacity is the most that one transaction could take if it had to.
	capacity() int
	// close leaves the volume without a need for recovery, unless the journal was aborted: then it only lets go of
	// memory. With failed it records that the volume has errors.
	close(aborted, failed bool) error
	// mark records at once that the volume has errors.
	mark() error
}

// OpenInPlace opens a journal for a volume that has none: a commit writes the dirty blocks home. A power cut can tear
// it; fsync is durable.
func OpenInPlace(c *Cache, cfg Config) (*Journal, error) {
	return open(c, cfg, newInPlace(c), maxTransactionBytes/c.blockSize, 1)
}

func open(c *Cache, cfg Config, s sink, max int, first TID) (*Journal, error) {
	if cfg.Interval <= 0 {
		cfg.Interval = DefaultCommitInterval
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	max = min(max, int(c.budget.txn)/c.blockSize)
	j := &Journal{cache: c, cfg: cfg, max: max, retry: min(retryInterval, cfg.Interval), sink: s, next: first, committed: first - 1, wanted: first - 1,
		stopped: make(chan struct{})}
	for j.credits = max; s.blocks(j.credits, 0) > max; j.credits-- {
	}
	if j.credits -= cfg.BeforeCommitCredits; j.credits <= 0 {
		return nil, fmt.Errorf("the journal is too small: a transaction may have %d blocks", max)
	}
	j.gate, j.idle, j.work, j.mark = thread.NewCond(&j.mu), thread.NewCond(&j.mu), sync.NewCond(&j.mu), sync.NewCond(&j.mu)
	go j.committer()
	return j, nil
}

// MaxCredits is the most that Begin accepts.
func (j *Journal) MaxCredits() int { return j.credits }

// Begin opens a handle that may dirty up to credits blocks. It waits while a commit copies, and commits first when the
// running transaction has no room left.
func (j *Journal) Begin(credits int) (*Handle, error) {
	if credits < 0 || credits > j.MaxCredits() {
		return nil, fmt.Errorf("%w: %d blocks asked for, %d fit", ErrTooLarge, credits, j.MaxCredits())
	}
	if err := j.reserve(); err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for before := j.triesLocked(); ; {
		h, err := j.beginLocked(credits)
		if h != nil || err != nil {
			return h, err
		}
		switch {
		case j.held != nil && j.tries > before:
			return nil, j.held.Err
		case j.held != nil:
			j.held.timer.Reset(max(beginPause-time.Since(j.held.last), 0))
		case !j.closing:
			j.requestLocked(j.running.tid)
		}
		j.gate.Wait()
	}
}

// reserve sees to it that there is memory to commit a transaction, before the first one.
func (j *Journal) reserve() error {
	if j.staged.Load() {
		return nil
	}
	if err := j.cache.stage.reserve(min(j.max, int(j.cache.blocks)+1)); err != nil {
		return fmt.Errorf("memory for the journal: %w", err)
	}
	j.staged.Store(true)
	return nil
}

// TryBegin is Begin that waits for nothing: it returns nil where Begin would have to wait.
func (j *Journal) TryBegin(credits int) *Handle {
	if !j.staged.Load() {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	h, _ := j.beginLocked(credits)
	return h
}

// beginLocked is nil where there is no room at the moment.
func (j *Journal) beginLocked(credits int) (*Handle, error) {
	if j.err != nil {
		return nil, j.err
	}
	if j.closing || j.held != nil {
		return nil, nil
	}
	t := j.running
	if t == nil {
		t = &transaction{tid: j.next, dirty: map[Block]*Buffer{}, revoked: map[Block]struct{}{},
			reserved: j.cfg.BeforeCommitCredits}
		t.done.Init(&j.mu)
		j.next++
		j.running = t
	}
	if j.sizeLocked(t, credits) > j.max {
		return nil, nil
	}
	t.open++
	t.reserved += credits
	return &Handle{j: j, txn: t, credits: credits}, nil
}

// sizeLocked is how many of the j.max blocks t takes, with more than it has so far.
func (j *Journal) sizeLocked(t *transaction, more int) int {
	return j.sink.blocks(len(t.dirty)+t.reserved+more, len(t.revoked))
}

// armLocked starts the clock of a transaction that has something to commit.
func (j *Journal) armLocked(t *transaction) {
	if t.timer == nil {
		t.timer = time.AfterFunc(j.cfg.Interval, func() {
			j.mu.Lock()
			j.requestLocked(t.tid)
			j.mu.Unlock()
		})
	}
}

func (j *Journal) requestLocked(t TID) {
	if t.After(j.wanted) {
		j.wanted = t
		j.work.Signal()
	}
}

// Commit makes everything durable that was written or changed before the call, file data included. Calls that come
// while a commit is under way share the next one.
func (j *Journal) Commit() error {
	j.mu.Lock()
	t := j.running
	if t == nil {
		c := j.committing
		j.mu.Unlock()
		if c != nil {
			if err := j.WaitCommit(c.tid); err != nil {
				return err
			}
		}
		if err := j.Err(); err != nil {
			return err
		}
		return j.flush()
	}
	j.mu.Unlock()
	return j.WaitCommit(t.tid)
}

// WaitCommit makes transaction t durable and returns when it is: at once if it was before the call. It says nothing of
// data written since. It reports ErrHeld if a try to commit has failed for lack of room or memory: the transaction is tried again.
func (j *Journal) WaitCommit(t TID) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.next.After(t) {
		return fmt.Errorf("transaction %d has not begun: the next is %d", t, j.next)
	}
	for before := j.triesLocked(); t.After(j.committed); {
		switch {
		case j.err != nil:
			return j.err
		case j.held != nil && j.tries > before:
			return j.held.Err
		case j.held != nil:
			j.again = true
		}
		if t.After(j.wanted) {
			j.wanted = t
		}
		if !j.leadLocked() {
			j.waitLocked(t) // ends with the device's own deadlines: a commit succeeds or aborts
		}
	}
	return nil
}

// waitLocked waits for news of t, which is not committed. Who commits has it done, or passes that on.
func (j *Journal) waitLocked(t TID) {
	x := j.running
	if c := j.committing; c != nil && !t.After(c.tid) {
		x = c
	}
	x.waiters++
	x.done.Wait()
	x.waiters--
}

// wakeLocked wakes all that wait for a commit.
func (j *Journal) wakeLocked() {
	for _, t := range []*transaction{j.running, j.committing} {
		if t != nil {
			t.done.Broadcast()
		}
	}
}

// Committed says whether transaction t is durable already.
func (j *Journal) Committed(t TID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return !t.After(j.committed)
}

// Err is nil until the journal is aborted or closed.
func (j *Journal) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}

// AwaitMark waits, after an abort, until the journal's superblock has the mark of it, or could not be written. A caller that
// reports the abort after that can rely on the next mount to know.
func (j *Journal) AwaitMark() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for j.failed && !j.marked {
		j.mark.Wait()
	}
}

// Abort stops the journal: nothing more is committed, every Begin fails. The first cause is kept and logged, and word is left of it,
// as after Fail: but not of writes that were refused for lack of room or memory, or by write protection, since the volume is then
// what its log says.
func (j *Journal) Abort(cause error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.abortLocked(cause)
}

// Fail is Abort because of damage that was found in the volume half-way through an operation. What was committed stays;
// the running transaction, which has half of the operation, never happens. The caller tells the user, and the committer leaves
// word in the journal's superblock (s_errno), where the next mount and e2fsck find it; Close does so once more.
func (j *Journal) Fail(cause error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil {
		j.failed = true
		j.stopLocked(cause)
	}
}

func (j *Journal) abortLocked(cause error) {
	if j.err != nil {
		return
	}
	j.cfg.Log.Error("journal aborted, no further changes are accepted; unmount, mend the cause, and mount again", "error", cause)
	j.failed = !refused(cause)
	j.stopLocked(cause)
}

// Failed says that the journal was aborted because of an error of the volume or of its device, of which word is left.
func (j *Journal) Failed() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failed
}

// Stop is Abort of a journal in which nothing is wrong: no word is left of it.
func (j *Journal) Stop(cause error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil {
		j.stopLocked(cause)
	}
}

func (j *Journal) stopLocked(cause error) {
	j.err = &abortError{cause}
	j.unholdLocked()
	j.gate.Broadcast()
	j.wakeLocked()
	j.idle.Signal()
	j.work.Signal()
}

// Close commits what is running, leaves the volume without a need for recovery and ends the committer. No handle may be
// open. After an abort it writes no more than that there were errors, and reports the cause.
func (j *Journal) Close() error {
	j.mu.Lock()
	if j.quit {
		j.mu.Unlock()
		<-j.stopped
		if err := j.Err(); errors.Is(err, ErrAborted) {
			return err // the second time proves nothing
		}
		return nil
	}
	j.quit = true
	j.work.Signal()
	j.mu.Unlock()
	<-j.stopped
	j.mu.Lock()
	err, failed := j.err, j.failed
	lost := j.lost
	if t := j.running; t != nil {
		for _, b := range t.dirty {
			lost = append(lost, b)
		}
	}
	j.mu.Unlock()
	for _, b := range lost {
		b.txn.Store(nil)
		b.unref()
	}
	if cerr := j.sink.close(err != nil, failed); err == nil {
		err = cerr
	}
	j.mu.Lock()
	if j.err == nil {
		j.err = ErrClosed
	}
	j.gate.Broadcast()
	j.wakeLocked()
	j.mu.Unlock()
	return err
}
