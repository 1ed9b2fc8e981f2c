//go:build race

package fs

// raced says that the race detector watches, under which a request takes ten times as long: then a test of many requests makes fewer.
const raced = true
