package disktest

import "os"

// Tests read what e2fsprogs and others say, which is in the user's language otherwise.
func init() { os.Setenv("LC_ALL", "C") }
