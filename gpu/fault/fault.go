// Package fault lets a goroutine access memory that may go while it does: a mapped file that is truncated, a device's memory that is taken back.
// Such an access raises SIGBUS or SIGSEGV, which would end the process.
package fault

import "runtime/debug"

// Guard calls f. The error is that of an access to memory that was not there, at which f ended; any other panic of f's goes on. It allocates nothing
// when f does not.
func Guard(f func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		e, ok := r.(interface { // what the runtime's error of an access has
			error
			Addr() uintptr
		})
		if !ok {
			panic(r)
		}
		err = e
	}()
	f()
	return nil
}
