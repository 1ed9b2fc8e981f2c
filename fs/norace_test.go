//go:build !race

package fs

const raced = false
