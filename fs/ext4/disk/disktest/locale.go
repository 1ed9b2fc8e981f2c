package disktest

import "os"

// Tests read what e2fsprogs and others say, which is in the user's language otherwise. A process without PATH runs none of them: a mount's gate, whose environment
// a test looks at, is a test's binary, too.
func init() {
	if os.Getenv("PATH") != "" {
		os.Setenv("LC_ALL", "C")
	}
}
