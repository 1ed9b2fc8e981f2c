package main

import (
	"bufio"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// besideHog makes a measurement while two processes of the same priority compute.
func besideHog(measure func(*system) (done, error)) func(*system) (done, error) {
	return func(s *system) (d done, err error) {
		end, err := hog()
		if err != nil {
			return done{}, err
		}
		defer func() { err = errors.Join(err, end()) }()
		return measure(s)
	}
}

// hog starts them, and returns when they run.
func hog() (end func() error, err error) {
	c := exec.Command("stress-ng", "--cpu", "2", "--timeout", "10m")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out, err := c.StderrPipe()
	if err != nil {
		return nil, err
	}
	c.Stdout = c.Stderr // stress-ng's messages are on one or the other, as its version likes
	if err := c.Start(); err != nil {
		return nil, err
	}
	end = func() error {
		err := c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait() // it says by its status that it was ended early
		return err
	}
	text := bufio.NewScanner(out)
	for text.Scan() {
		if strings.Contains(text.Text(), "dispatching hogs") {
			time.Sleep(200 * time.Millisecond) // the processes are forked after this
			go func() {                        // so that it never waits for its reader
				for text.Scan() {
				}
			}()
			return end, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("stress-ng ended: %q", text.Text()), c.Wait())
}
