package powercut

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// templates makes the first volume of each layout once, and copies it for runs.
type templates struct {
	dir     string
	workers int

	mu   sync.Mutex
	made map[string]*template // protected by mu
}

type template struct {
	path string
	tree *Tree
}

// get puts a new volume of the layout at path and returns its tree.
func (s *templates) get(l *Layout, path string) (*Tree, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.made[l.Name]
	if t == nil {
		t = &template{path: filepath.Join(s.dir, "template-"+l.Name)}
		if err := t.make(l, s.workers); err != nil {
			return nil, fmt.Errorf("layout %s: %w", l.Name, err)
		}
		if s.made == nil {
			s.made = map[string]*template{}
		}
		s.made[l.Name] = t
	}
	b, err := os.ReadFile(t.path)
	if err != nil {
		return nil, err
	}
	return t.tree, os.WriteFile(path, b, 0o600)
}

func (t *template) make(l *Layout, workers int) error {
	if err := l.make(t.path); err != nil {
		return err
	}
	s, err := openStack(t.path, stackOptions{lba: l.LBA})
	if err != nil {
		return err
	}
	defer s.close()
	if err := setup(s.vol, workers); err != nil {
		return err
	}
	if t.tree, err = walk(s.vol); err != nil {
		return err
	}
	return s.close()
}
