// Command make writes the generated pictures and sections of the documents: `make docs`. It prints the files that changed.
package main

import (
	"fmt"
	"os"

	"github.com/lanefs/lanefs/docs"
)

func main() {
	files, err := docs.Generate(".")
	if err == nil {
		for path, text := range files {
			if old, readErr := os.ReadFile(path); readErr == nil && string(old) == text {
				continue
			}
			if err = os.WriteFile(path, []byte(text), 0o644); err != nil {
				break
			}
			fmt.Println("docs:", path)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "docs:", err)
		os.Exit(1)
	}
}
