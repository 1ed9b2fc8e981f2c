// Mkshim builds the shim over plain memory into a new folder: for the lab, whose guest has no compiler.
package main

import (
	"fmt"
	"os"

	"github.com/lanefs/lanefs/gpu/hip/shim"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: mkshim DIR")
		os.Exit(2)
	}
	err := os.Mkdir(os.Args[1], 0o755)
	if err == nil {
		err = shim.Build("gcc", "cpu", "", os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mkshim:", err)
		os.Exit(1)
	}
}
