package engine

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/nvmeq/controller"
)

// Candidates is what OpenBest chooses from, the best first. The last of each is used without a proof: it is the fallback.
type Candidates struct {
	Doorbells []DoorbellRoute
	Modes     []controller.MemoryMode
}

// Choice is what OpenBest chose, and why nothing better.
type Choice struct {
	Doorbell DoorbellRoute
	Mode     controller.MemoryMode
	Refused  []string // "memory mode 11: …", the best first
}

// OpenBest is Open in the best of the memory modes, with the best of the doorbell routes, that Prove accepts for an engine
// like ec and a namespace. The controller is opened once, and again only after a proof that left something behind: to open and shut a
// drive takes it seconds.
func OpenBest(cfg controller.Config, l Candidates, ec Config, nsid uint32) (*controller.Controller, Choice, error) {
	if len(l.Doorbells) == 0 || len(l.Modes) == 0 {
		return nil, Choice{}, errors.New("nvme: OpenBest needs candidates")
	}
	least, last := l.Modes[len(l.Modes)-1], l.Doorbells[len(l.Doorbells)-1]
	o := opener{cfg: cfg, ec: ec, nsid: nsid, choice: Choice{Doorbell: last, Mode: least}}
	err := o.choose(l, least)
	if err == nil && (o.c == nil || o.c.Failover() == nil) {
		err = o.in(o.choice.Mode)
	}
	if err != nil && o.c != nil {
		return nil, o.choice, errors.Join(err, o.c.Close())
	}
	return o.c, o.choice, err
}

// opener is one OpenBest under way.
type opener struct {
	cfg    controller.Config
	ec     Config
	nsid   uint32
	c      *controller.Controller // nil: it is not open
	choice Choice
}

// choose tries the doorbells, with the memory that needs the least, then the memory.
func (o *opener) choose(l Candidates, least controller.MemoryMode) error {
	for _, r := range l.Doorbells[:len(l.Doorbells)-1] {
		ok, err := o.attempt(least, r, fmt.Sprintf("doorbells by %v", r))
		if err != nil {
			return err
		}
		if ok {
			o.choice.Doorbell = r
			break
		}
	}
	for _, m := range l.Modes[:len(l.Modes)-1] {
		if o.c != nil && o.c.Failover() != nil {
			return nil // nothing is left to choose
		}
		ok, err := o.attempt(m, o.choice.Doorbell, fmt.Sprintf("memory mode %d", m))
		if err != nil {
			return err
		}
		if ok {
			o.choice.Mode = m
			break
		}
	}
	return nil
}

// in has the controller open, with its memory in that mode.
func (o *opener) in(m controller.MemoryMode) error {
	place, err := m.Placement()
	if err != nil {
		return err
	}
	if o.c != nil {
		return o.c.Place(place)
	}
	o.cfg.Placement = place
	o.c, err = controller.Open(o.cfg)
	return err
}

// attempt says whether one way is proved. After a failover to the CPU nothing is left to prove.
func (o *opener) attempt(m controller.MemoryMode, r DoorbellRoute, what string) (bool, error) {
	if err := o.in(m); err != nil {
		return false, err
	}
	c, ec := o.c, o.ec
	ec.Doorbell = r
	why := Prove(c, ec, o.nsid)
	if why == nil || c.Failover() != nil {
		return true, nil
	}
	c.Log().Info("refused: "+what, "device", c.Name(), "why", why.Error())
	o.choice.Refused = append(o.choice.Refused, what+": "+why.Error())
	if c.Err() == nil && c.AdminErr() == nil && c.Generation() == 0 && !errors.Is(why, errLeft) {
		return false, nil
	}
	o.c = nil
	if err := c.Close(); err != nil {
		return false, errors.Join(fmt.Errorf("%s: %w", what, why), err)
	}
	return false, nil
}
