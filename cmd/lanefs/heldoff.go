package main

import (
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// dying is how long the process waits for the end that a signal is to make, which goes to any of its threads: the thread that sent it must not be the first to end the process, well.
const dying = 10 * time.Second

// heldOff keeps signals from ending the process until release is called: while what has been taken away is not put back. SIGPIPE is one of them, with which a write to an output
// that nobody reads any more ends a process: such a write fails instead. The end of a session, and SIGQUIT, have their effect then; SIGINT and SIGTERM have none but what stopped says,
// since the work is done. What is ignored, as SIGHUP by nohup(1), stays so.
func heldOff() (release func()) {
	var all []os.Signal
	for _, s := range []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE} {
		if !signal.Ignored(s) {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return func() {}
	}
	came := make(chan os.Signal, 64)
	signal.Notify(came, all...)
	return func() {
		signal.Stop(came)
		for {
			select {
			case s := <-came:
				if s == unix.SIGHUP || s == unix.SIGQUIT {
					_ = unix.Kill(os.Getpid(), s.(unix.Signal))
					time.Sleep(dying)
				}
			default:
				return
			}
		}
	}
}
