package softctl

import "sync"

// Command is what an Injector may look at.
type Command struct {
	Queue  uint16
	ID     uint16
	Opcode uint8
	NSID   uint32
	SLBA   uint64 // of commands that have a range, else 0
	Blocks uint64
	Admin  bool
}

// Verdict is what is to go wrong with one command. The zero value is nothing.
type Verdict struct {
	Status Status // not 0: the command is not carried out and answers this
	Drop   bool   // carried out, and no completion comes
	XorCID uint16 // the completion carries the wrong CID
	Fatal  bool   // the controller fails (CSTS.CFS) instead of carrying it out
}

// Injector decides what goes wrong. Command is called once for each command before it is carried out, from whatever
// thread steps the queue.
type Injector interface {
	Command(c Command) Verdict
}

// Rule is one fault of a Rules injector. A command matches when every field that is set says so.
type Rule struct {
	Admin  bool       // match admin commands instead of I/O commands
	Opcode *uint8     // nil: any
	NSID   uint32     // 0: any
	Range  *[2]uint64 // first LBA and count: commands that touch the range; nil: any
	Skip   int        // this many matches pass first
	Times  int        // then this many fail; 0 is all
	Do     Verdict

	seen int
}

// Rules is an Injector made of rules. The first that applies decides.
type Rules struct {
	mu    sync.Mutex
	rules []*Rule
	fired int
}

// Add appends a rule.
func (r *Rules) Add(rule Rule) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules = append(r.rules, &rule)
}

// Clear removes all rules.
func (r *Rules) Clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules = nil
}

// Fired is how many commands had something go wrong.
func (r *Rules) Fired() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fired
}

func (r *Rules) Command(c Command) Verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rule := range r.rules {
		if !rule.matches(c) {
			continue
		}
		rule.seen++
		if rule.seen > rule.Skip && (rule.Times == 0 || rule.seen <= rule.Skip+rule.Times) {
			r.fired++
			return rule.Do
		}
	}
	return Verdict{}
}

func (r *Rule) matches(c Command) bool {
	if r.Admin != c.Admin || r.Opcode != nil && *r.Opcode != c.Opcode || r.NSID != 0 && r.NSID != c.NSID {
		return false
	}
	if r.Range == nil {
		return true
	}
	first, n := r.Range[0], r.Range[1]
	return c.Blocks > 0 && c.SLBA < first+n && first < c.SLBA+c.Blocks
}
