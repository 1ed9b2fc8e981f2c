// Command faults runs a campaign of faults against LaneFS, or repeats one try of it: see package iofault. Every flag can also be
// given in the environment: -time is FAULT_TIME, for make fault-test.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/lanefs/lanefs/lab/diff"
	"github.com/lanefs/lanefs/lab/internal/drive"
	"github.com/lanefs/lanefs/lab/internal/image"
	"github.com/lanefs/lanefs/lab/iofault"
)

func main() {
	log.SetFlags(0)
	var c iofault.Campaign
	flag.Uint64Var(&c.Seed, "seed", 0, "seed of the first sequence; 0: from the clock")
	flag.DurationVar(&c.Time, "time", 20*time.Minute, "how long; 0: until there were as many faults as -tries says")
	flag.IntVar(&c.Tries, "tries", 0, "stop after so many faults; 0: when the time is over")
	flag.IntVar(&c.PerK, "perk", 2, "ways to fail that are tried for each command")
	flag.IntVar(&c.Most, "most", 100, "tries of a window at most")
	flag.IntVar(&c.Windows, "windows", 10, "windows of a sequence")
	flag.IntVar(&c.Parallel, "parallel", 3, "tries at a time")
	flag.Float64Var(&c.Kernel, "kernel", 0.25, "the part of the media that the kernel recovers, too")
	flag.Float64Var(&c.LaneFS, "lanefs", 0.25, "the part of the media that LaneFS recovers, too")
	flag.StringVar(&c.Layout, "layout", "", "only this layout")
	profile := flag.String("profile", "", "only this profile: direct or names")
	flag.StringVar(&c.Dir, "dir", drive.Memory(), "where images are made")
	flag.IntVar(&c.Kinds, "kinds", 1, "stop after so many kinds of failure")
	flag.IntVar(&c.Window, "window", 0, "with -layout, -profile, -seed, -k and -mode: repeat this one try")
	flag.IntVar(&c.K, "k", 0, "which command or allocation fails")
	flag.StringVar(&c.Mode, "mode", "", "and how")
	drive.ParseFlags("FAULT_")
	c.Profile = diff.Profile(*profile)
	if why := image.KernelMissing(); why != "" {
		log.Printf("SKIPPED: the kernel's recovery: %s", why)
		c.Kernel = 0
	}
	if c.Window > 0 && (c.Layout == "" || c.Profile == "" || c.Mode == "" || c.K == 0) {
		log.Fatal("-window needs -layout, -profile, -seed, -k and -mode")
	}
	if c.Seed == 0 {
		c.Seed = uint64(time.Now().UnixNano())
	}
	if c.Window == 0 {
		fmt.Printf("faults: seeds from %d, for %v\n", c.Seed, c.Time)
	}
	c.Logf = log.Printf
	s, err := c.Run()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(s)
	fmt.Println("steps that faults hit:", s.Steps())
	for _, f := range s.Kinds {
		fmt.Printf("%d times: %s\n  %s\n", f.Number, f.Kind, f.Again)
	}
	if s.Failures > 0 {
		os.Exit(1)
	}
	if s.Faults == 0 {
		log.Fatal("no fault hit anything")
	}
}
