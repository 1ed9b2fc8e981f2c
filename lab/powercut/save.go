package powercut

import (
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// A failed run is saved in a directory: run.gob, the Run; recording, what was recorded; cuts.txt, what failed.

// Save writes the run to dir, which it makes.
func (r *Run) Save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return errors.Join(
		toFile(filepath.Join(dir, "run.gob"), func(f *os.File) error { return gob.NewEncoder(f).Encode(r) }),
		toFile(filepath.Join(dir, "recording"), func(f *os.File) error { return r.recording.Save(f) }),
	)
}

func toFile(path string, write func(*os.File) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// Load reads what Save wrote.
func Load(dir string) (*Run, error) {
	r := &Run{}
	f, err := os.Open(filepath.Join(dir, "run.gob"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := gob.NewDecoder(f).Decode(r); err != nil {
		return nil, fmt.Errorf("%s: not a saved run: %w", f.Name(), err)
	}
	if len(r.Results) != r.Workers || r.Before == nil {
		return nil, fmt.Errorf("%s: not a saved run: %d workers, results of %d", f.Name(), r.Workers, len(r.Results))
	}
	g, err := os.Open(filepath.Join(dir, "recording"))
	if err != nil {
		return nil, err
	}
	defer g.Close()
	if r.recording, err = media.LoadRecording(g); err != nil {
		return nil, fmt.Errorf("%s: %w", g.Name(), err)
	}
	r.rebuild()
	return r, nil
}
