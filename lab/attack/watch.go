package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// victim is another user of the mount, root, with ordinary operations.
type victim struct {
	a       *arena
	f       *os.File
	content []byte
	rng     *rand.Rand
}

const (
	victimSize = 3 << 20
	// What attackers can open: to read, to write, and not at all.
	readable, writable, secret = "readable", "writable", "secret"
)

func (a *arena) victim() (*victim, error) {
	v := &victim{a: a, content: make([]byte, victimSize), rng: rand.New(rand.NewPCG(uint64(a.Seed), 2))}
	var errs []error
	for name, mode := range map[string]os.FileMode{readable: 0o644, writable: 0o666, secret: 0o600} {
		path := filepath.Join(a.mnt, name)
		errs = append(errs, os.WriteFile(path, v.content, mode), os.Chmod(path, mode))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var err error
	v.f, err = os.OpenFile(filepath.Join(a.mnt, readable), os.O_RDWR, 0) // what attackers map and watch
	return v, err
}

func (v *victim) close() { v.f.Close() }

// check does a user's operations. Each must succeed within the bound.
func (v *victim) check() error {
	off := v.rng.Int64N(victimSize - 4096)
	part := bytes.Repeat([]byte{byte(v.rng.Uint32())}, 1+v.rng.IntN(4096))
	secretPath := filepath.Join(v.a.mnt, secret)
	for _, c := range []struct {
		what string
		do   func() error
	}{
		{"a write to a file that attackers watch", func() error {
			_, err := v.f.WriteAt(part, off)
			copy(v.content[off:], part)
			return err
		}},
		{"fsync", v.f.Sync},
		{"a read", func() error { return v.read() }},
		{"a map", func() error { return v.mapped() }},
		{"a file of its own", func() error {
			name := filepath.Join(v.a.mnt, "new")
			err := errors.Join(os.WriteFile(name, part, 0o600), unix.Access(name, unix.R_OK))
			b, e := os.ReadFile(name)
			if !bytes.Equal(b, part) {
				e = errors.Join(e, errors.New("it has other bytes"))
			}
			return errors.Join(err, e, os.Remove(name))
		}},
		{"stat and statfs", func() error {
			var st unix.Stat_t
			var fs unix.Statfs_t
			return errors.Join(unix.Stat(secretPath, &st), unix.Statfs(v.a.mnt, &fs))
		}},
		{"a file that attackers cannot open", func() error {
			b, err := os.ReadFile(secretPath)
			if err == nil && !bytes.Equal(b, make([]byte, victimSize)) {
				err = errors.New("it has changed")
			}
			return err
		}},
		{"lanefs vram ls", v.limits},
	} {
		if err := v.a.within(c.what, c.do); err != nil {
			return err
		}
	}
	time.Sleep(20 * time.Millisecond)
	return nil
}

func (v *victim) read() error {
	b := make([]byte, victimSize)
	if _, err := v.f.ReadAt(b, 0); err != nil {
		return err
	}
	if !bytes.Equal(b, v.content) {
		return errors.New("it has other bytes than were written")
	}
	return nil
}

// mapped maps the file: what attackers hold must not prevent it.
func (v *victim) mapped() error {
	s, err := lanefs.Connect(v.f)
	if err != nil {
		return err
	}
	defer s.Close()
	b, err := s.Map(v.f, 0, 0)
	if err != nil {
		return err
	}
	if !bytes.Equal(b.Bytes(), v.content) {
		err = errors.New("it has other bytes than were written")
	}
	return errors.Join(err, b.Close())
}

// limits reads from the daemon what each user has, which must be within the limits.
func (v *victim) limits() error {
	out, err := v.a.lanefs("vram", "ls", "--json", v.a.mnt)
	if err != nil {
		return err
	}
	type numbers struct {
		UID                                                  uint32
		Connections, Descriptors, Rings, Handles, Registered int64
		Shared, Held                                         int64
	}
	var r struct {
		Size, Used int64
		Users      []numbers
		Limits     numbers
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return err
	}
	if r.Used > r.Size {
		return fmt.Errorf("%d bytes of a pool of %d", r.Used, r.Size)
	}
	for _, u := range r.Users {
		l := r.Limits
		if u.UID == 0 {
			continue
		}
		if u.Connections > l.Connections || u.Descriptors > l.Descriptors || u.Rings > l.Rings || u.Handles > l.Handles ||
			u.Registered > l.Registered || u.Shared > l.Shared || u.Held > l.Held {
			return fmt.Errorf("user %d has %+v, of %+v", u.UID, u, l)
		}
	}
	return nil
}
