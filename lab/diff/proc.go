package diff

import (
	"fmt"
)

// proc is one process of a run: a worker on each side.
type proc struct {
	n       int
	steps   []step
	at      int
	root    string // below the mount
	workers []*worker
	model   *model
}

// run runs a process's steps up to a remount or the end, both sides in step.
func (p *proc) run(r *run) *Failure {
	for ; p.at < len(p.steps); p.at++ {
		s := &p.steps[p.at]
		if s.Kind == OpRemount {
			p.at++
			return nil
		}
		if r.fail != nil {
			return nil // another process found something
		}
		results, err := p.do(&s.Op)
		f := &Failure{Config: r.Config, Stage: "operation", Proc: p.n, Index: s.index, Op: s.Op}
		if err != nil {
			f.Diffs = []string{"broken: " + err.Error()}
			r.explain(f, err)
			return f
		}
		l := &results[0]
		if len(results) > 1 {
			right := &results[1]
			adjust(&r.Config, &s.Op, l, right)
			f.Diffs = compare(*l, *right)
		} else if l.Note != "" {
			f.Diffs = []string{"note: left: " + l.Note}
		}
		if p.model != nil && len(f.Diffs) == 0 {
			if bad := p.follow(&s.Op, l); bad != "" {
				f.Diffs = []string{"model: " + bad}
			}
		}
		if len(f.Diffs) > 0 {
			r.explain(f, nil)
			return f
		}
	}
	return nil
}

// do runs one Op on all sides.
func (p *proc) do(o *Op) ([]Result, error) {
	for _, w := range p.workers {
		if err := w.send(request{Op: o}); err != nil {
			return nil, fmt.Errorf("a worker died: %w: %s", err, w.stderr)
		}
	}
	results := make([]Result, len(p.workers))
	for i, w := range p.workers {
		a, err := w.receive()
		if err != nil {
			return nil, err
		}
		results[i] = a.Result
	}
	return results, nil
}
