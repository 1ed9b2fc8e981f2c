// Command attack attacks a mount that shares files as device memory, as ordinary users with one readable file can: with random
// messages, kinds of descriptors, flags, seals, words of a ring and ways to disconnect, from many processes at once. Meanwhile
// another user's reads, writes, maps, stat and unmount must succeed, each within a bound. `go run ./lab/attack -time 1m`, as
// root; -time 0 runs without end. The seed that it prints repeats its choices, but not their timing.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/lanefs/lanefs/lab/internal/drive"
)

func main() {
	if v := os.Getenv(attackerEnv); v != "" {
		attacker(v)
		return
	}
	var c config
	flag.DurationVar(&c.Time, "time", time.Minute, "how long; 0: without end")
	flag.DurationVar(&c.Bound, "bound", bound, "how long another user's operation may take")
	flag.IntVar(&c.Attackers, "attackers", 6, "processes that attack")
	flag.Int64Var(&c.Seed, "seed", time.Now().UnixNano(), "of what is chosen")
	flag.StringVar(&c.Lanefs, "lanefs", "", "the program to attack; built if empty")
	flag.StringVar(&c.IOUring, "io_uring", "auto", "on, off or auto: how the mount's requests come")
	flag.Parse()
	c.Say = func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	if err := attackMain(c); err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(1)
	}
}

func attackMain(c config) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("needs root: attackers and the attacked user are different users")
	}
	back, err := drive.OfferRings()
	if err != nil && c.IOUring == "on" {
		c.Say("SKIPPED over io_uring: %v", err)
		return nil
	}
	defer back()
	if c.Lanefs == "" {
		dir, err := os.MkdirTemp("", "lanefs-attack-bin-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		c.Lanefs = filepath.Join(dir, "lanefs")
		if err := drive.Build(c.Lanefs); err != nil {
			return err
		}
	}
	return run(c)
}
