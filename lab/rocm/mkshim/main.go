// Command mkshim builds the shim into a new folder, for machines that have no compiler. It is built over plain memory for the lab's
// guest, and over CUDA for machines with a GPU.
package main

import (
	"fmt"
	"os"

	"github.com/lanefs/lanefs/lab/rocm"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: mkshim cpu|cuda DIR")
		os.Exit(2)
	}
	err := os.Mkdir(os.Args[2], 0o755)
	if err == nil {
		err = rocm.Build("gcc", os.Args[1], "", os.Args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mkshim:", err)
		os.Exit(1)
	}
}
