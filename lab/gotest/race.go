package main

import "strings"

// withoutSleep has programs under the race detector end at once, not after a second. Many tests start such programs, and wait for their end.
func withoutSleep(gorace string) string {
	return strings.TrimSpace("GORACE=atexit_sleep_ms=0 " + gorace)
}
