// Package align rounds sizes. The sizes are bytes, the units any positive number.
package align

// Up is n rounded up to a multiple of unit.
func Up(n, unit int64) int64 { return (n + unit - 1) / unit * unit }
