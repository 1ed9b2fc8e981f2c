// Package ccall calls functions of C libraries where each call counts. purego.SyscallN does it, too: for calls of up to 32 arguments that may also be
// floating-point numbers, which takes some 90 ns, allocates, and takes as long again to make a device current before.
package ccall

// Most is how many arguments a call takes.
const Most = 20

// Call is a call of a C function, with another one before it. It is on the heap while it runs: C may take long, and the Go stack moves.
// The callee's pointers are the caller's business. A Call serves one call at a time.
type Call struct {
	first, firstArg, firstResult uintptr
	fn                           uintptr
	more                         uintptr // arguments behind the sixth
	result                       uintptr
	args                         [Most]uintptr
}

// Do calls fn, and returns what it returns, of which a function that returns an int fills the lower half. It panics with more than Most arguments.
func (c *Call) Do(fn uintptr, args ...uintptr) uintptr {
	_, result := c.After(0, 0, fn, args...)
	return result
}

// After is Do, by the same thread after a call of first with one argument, if first is not 0. If that returns an int other than 0, fn is not called.
func (c *Call) After(first, arg, fn uintptr, args ...uintptr) (firstResult int32, result uintptr) {
	if len(args) > Most {
		panic("ccall: too many arguments")
	}
	n := copy(c.args[:], args)
	c.first, c.firstArg, c.firstResult, c.fn, c.result = first, arg, 0, fn, 0
	c.more = uintptr(max(n-registers, 0))
	c.enter()
	return int32(c.firstResult), c.result
}

// registers are arguments that C functions of 64-bit machines take in registers, by the convention that takes fewest of them so.
const registers = 6
