//go:build !amd64 && !arm64

package privilege

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

const signal = unix.Signal(33)

func install(Set) (func() error, error) {
	return nil, fmt.Errorf("there is no signal handler for %s yet", runtime.GOARCH)
}

func here() refused { return refused{} }
