package main

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// heldOff keeps signals from ending the process until release is called: while what has been taken away is not put back. SIGPIPE is one of them, with which a write to an output
// that nobody reads any more ends a process: such a write fails instead. The end of a session, and SIGQUIT, have their effect then; SIGINT and SIGTERM have none but what stopped says,
// since the work is done.
func heldOff() (release func()) {
	came := make(chan os.Signal, 64)
	signal.Notify(came, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	return func() {
		signal.Stop(came)
		for {
			select {
			case s := <-came:
				if s == unix.SIGHUP || s == unix.SIGQUIT {
					_ = unix.Kill(os.Getpid(), s.(unix.Signal))
				}
			default:
				return
			}
		}
	}
}
