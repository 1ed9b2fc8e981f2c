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
// like ec and a namespace. Every attempt opens the controller anew.
func OpenBest(cfg controller.Config, l Candidates, ec Config, nsid uint32) (*controller.Controller, Choice, error) {
	var ch Choice
	if len(l.Doorbells) == 0 || len(l.Modes) == 0 {
		return nil, ch, errors.New("nvme: OpenBest needs candidates")
	}
	least, last := l.Modes[len(l.Modes)-1], l.Doorbells[len(l.Doorbells)-1]
	// Doorbells first, with the memory that needs the least.
	ch.Doorbell, ch.Mode = last, least
	var c *controller.Controller
	for _, r := range l.Doorbells[:len(l.Doorbells)-1] {
		var err error
		if c, err = ch.attempt(cfg, ec, nsid, least, r, fmt.Sprintf("doorbells by %v", r)); err != nil {
			return nil, ch, err
		}
		if c != nil {
			ch.Doorbell = r
			break
		}
	}
	if c != nil && len(l.Modes) > 1 {
		if err := c.Close(); err != nil {
			return nil, ch, err
		}
		c = nil
	}
	for _, m := range l.Modes[:len(l.Modes)-1] {
		c, err := ch.attempt(cfg, ec, nsid, m, ch.Doorbell, fmt.Sprintf("memory mode %d", m))
		if err != nil {
			return nil, ch, err
		}
		if c != nil {
			ch.Mode = m
			return c, ch, nil
		}
	}
	if c == nil {
		var err error
		if c, err = openIn(cfg, least); err != nil {
			return nil, ch, err
		}
	}
	return c, ch, nil
}

func openIn(cfg controller.Config, m controller.MemoryMode) (*controller.Controller, error) {
	var err error
	if cfg.Placement, err = m.Placement(); err != nil {
		return nil, err
	}
	return controller.Open(cfg)
}

// attempt opens the controller in one way. It returns nil where the proof failed; the controller is closed again then. After a
// failover to the CPU nothing is left to prove.
func (ch *Choice) attempt(cfg controller.Config, ec Config, nsid uint32, m controller.MemoryMode, r DoorbellRoute, what string) (*controller.Controller, error) {
	c, err := openIn(cfg, m)
	if err != nil {
		return nil, err
	}
	ec.Doorbell = r
	why := Prove(c, ec, nsid)
	if why == nil || c.Failover() != nil {
		return c, nil
	}
	c.Log().Info("refused: "+what, "device", c.Name(), "why", why.Error())
	ch.Refused = append(ch.Refused, what+": "+why.Error())
	if err := c.Close(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", what, why), err)
	}
	return nil, nil
}
