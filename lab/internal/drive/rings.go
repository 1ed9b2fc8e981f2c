package drive

import (
	"fmt"
	"os"
	"strings"
)

// ringsParameter is the fuse module's switch. Without it there is no FUSE over io_uring.
var ringsParameter = "/sys/module/fuse/parameters/enable_uring"

// OfferRings switches FUSE over io_uring on. What it returns puts the switch back.
func OfferRings() (back func() error, err error) {
	back = func() error { return nil }
	before, err := os.ReadFile(ringsParameter)
	if err != nil || strings.TrimSpace(string(before)) == "Y" {
		return back, err
	}
	if err := os.WriteFile(ringsParameter, []byte("Y"), 0); err != nil {
		return back, err
	}
	return func() error { return os.WriteFile(ringsParameter, before, 0) }, nil
}

// RequireTransport returns an error if a mount was asked for a transport, by -o io_uring=want, and does not have it.
func RequireTransport(lanefs, dir, want string) error {
	if want == "auto" {
		return nil
	}
	s, err := ReadStat(lanefs, dir)
	if err != nil {
		return err
	}
	if got := strings.HasPrefix(s.FUSE.Transport, "io_uring"); got != (want == "on") {
		return fmt.Errorf("asked for io_uring=%s, requests come by %s: %s", want, s.FUSE.Transport, s.FUSE.WhyNot)
	}
	return nil
}
