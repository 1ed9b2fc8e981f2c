package device

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// ErrNoLibrary is wrapped by New's error when the C library cannot be opened, or is too old. The text has the remedy.
var ErrNoLibrary = errors.New("memory of a GPU takes LaneFS's C library (install the package liblanefs1, or make -C sdk/c install; LANEFS_LIBRARY says where it is)")

const (
	libraryName = "liblanefs.so.1" // the number is the interface's version
	libraryEnv  = "LANEFS_LIBRARY" // another path of it
)

// library is the C library's functions, by the names of lanefs.h.
type library struct {
	connect, closeSession, errorText              uintptr
	stageNew, stageFree, stageWays, open, release uintptr
	readBatch, writeBatch, readAsync, writeAsync  uintptr
	errno                                         uintptr // libc's, which the library is linked to
}

var opened struct {
	sync.Mutex
	l *library
}

// openLibrary opens it, once.
func openLibrary() (*library, error) {
	opened.Lock()
	defer opened.Unlock()
	if opened.l != nil {
		return opened.l, nil
	}
	name := os.Getenv(libraryEnv)
	if name == "" {
		name = libraryName
	}
	runtime.LockOSThread() // what Dlopen says is the thread's
	handle, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
	runtime.UnlockOSThread()
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNoLibrary, name, err)
	}
	l := &library{}
	for function, at := range map[string]*uintptr{
		"connect": &l.connect, "close": &l.closeSession, "error": &l.errorText, "stage_new": &l.stageNew, "stage_free": &l.stageFree, "stage_ways": &l.stageWays,
		"open": &l.open, "release": &l.release, "read_batch": &l.readBatch, "write_batch": &l.writeBatch, "read_async": &l.readAsync, "write_async": &l.writeAsync,
	} {
		if *at, err = purego.Dlsym(handle, "lanefs_"+function); err != nil {
			return nil, fmt.Errorf("%w: %s has no lanefs_%s: it is too old, or another library: %w", ErrNoLibrary, name, function, err)
		}
	}
	if l.errno, err = purego.Dlsym(handle, "__errno_location"); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	opened.l = l
	return l, nil
}

// A function's result is a failure if it is this.
func isNull(r uintptr) bool   { return r == 0 }
func isNone(r uintptr) bool   { return int32(r) == -1 } // an int
func isNone64(r uintptr) bool { return int64(r) == -1 }
func never(uintptr) bool      { return false }

// control calls fn with f's descriptor. It does not make f blocking, as f.Fd would.
func control(f *os.File, fn func(fd uintptr) error) (err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if err1 := raw.Control(func(fd uintptr) { err = fn(fd) }); err1 != nil {
		return err1
	}
	return err
}

// call calls a function of the library. Its error is an errno with the library's text.
//
//go:uintptrescapes
func (l *library) call(function uintptr, failed func(uintptr) bool, args ...uintptr) (uintptr, error) {
	runtime.LockOSThread() // errno and the text are the thread's
	defer runtime.UnlockOSThread()
	r, _, _ := purego.SyscallN(function, args...)
	if !failed(r) {
		return r, nil
	}
	at, _, _ := purego.SyscallN(l.errno)
	errno := unix.Errno(**(**int32)(unsafe.Pointer(&at)))
	at, _, _ = purego.SyscallN(l.errorText)
	text := unix.BytePtrToString(*(**byte)(unsafe.Pointer(&at)))
	if text == "" || strings.EqualFold(text, errno.Error()) {
		return 0, errno
	}
	return 0, fmt.Errorf("%s: %w", text, errno)
}
