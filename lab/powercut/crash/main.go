// Command crash runs a power-cut campaign against LaneFS, or one cut of a failure again: see package powercut. Every flag
// can also be given in the environment: -cuts is CRASH_CUTS, for make crash-test.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/lanefs/lanefs/lab/internal/drive"
	"github.com/lanefs/lanefs/lab/internal/image"
	"github.com/lanefs/lanefs/lab/powercut"
)

func main() {
	log.SetFlags(0)
	var c powercut.Campaign
	var cut powercut.Cut
	seed := flag.Uint64("seed", 0, "seed of the first run; 0: from the clock")
	flag.DurationVar(&c.Time, "time", 20*time.Minute, "how long")
	flag.IntVar(&c.Runs, "runs", 0, "stop after so many workloads; 0: when the time is over")
	flag.IntVar(&c.Cuts, "cuts", 40, "cuts of each workload")
	flag.IntVar(&c.Ops, "ops", 300, "operations of each goroutine of a workload")
	flag.IntVar(&c.Workers, "workers", 3, "goroutines of a workload")
	flag.IntVar(&c.Parallel, "parallel", 2, "workloads at a time")
	flag.Float64Var(&c.Full, "full", 1, "the part of the cuts that e2fsck and the kernel recover too, and whose recovery is cut")
	flag.IntVar(&c.Recuts, "recuts", 2, "cuts of each such recovery")
	flag.StringVar(&c.Layout, "layout", "", "only this layout")
	flag.StringVar(&c.Dir, "dir", drive.Memory(), "where images are made")
	flag.StringVar(&c.Keep, "keep", "build/crash", "where failures are saved")
	flag.IntVar(&c.Failures, "failures", 1, "stop after so many failures")
	replay := flag.String("replay", "", "directory of a saved failure to run again")
	flag.IntVar(&cut.At, "cut", 0, "with -replay: the cut")
	flag.Uint64Var(&cut.Seed, "cutseed", 0, "with -replay: its seed")
	images := flag.String("images", "", "with -replay: a directory in which the images are left")
	drive.ParseFlags("CRASH_")

	why := image.KernelMissing()
	if c.Kernel = why == ""; !c.Kernel {
		log.Printf("SKIPPED: the kernel's recovery of cut volumes: %s", why)
	}
	if *replay != "" {
		if err := powercut.Replay(*replay, cut, *images, c.Kernel); err != nil {
			log.Fatalf("%s: cut %d, seed %d: %v", *replay, cut.At, cut.Seed, err)
		}
		fmt.Println("the cut was recovered, and nothing is wrong")
		return
	}
	if c.Fresh = *seed; c.Fresh == 0 {
		c.Fresh = uint64(time.Now().UnixNano())
	}
	fmt.Printf("power cuts: seeds from %d, for %v\n", c.Fresh, c.Time)
	c.Logf = log.Printf
	s, err := c.Run()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(s)
	for i := range s.Failures {
		fmt.Println(&s.Failures[i])
	}
	if len(s.Failures) > 0 {
		os.Exit(1)
	}
}
