package fs

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// errorLog logs each distinct error of a request once, so that a broken volume does not fill the log.
type errorLog struct {
	log  *slog.Logger
	mu   sync.Mutex
	seen map[string]bool // protected by mu
}

// maxLogged bounds what errorLog remembers. Errors that come after so many others are not logged.
const maxLogged = 256

func (l *errorLog) report(op string, ino uint32, err error) {
	text := err.Error()
	l.mu.Lock()
	first := !l.seen[text] && len(l.seen) < maxLogged
	if first {
		if l.seen == nil {
			l.seen = make(map[string]bool)
		}
		l.seen[text] = true
	}
	l.mu.Unlock()
	if first {
		l.log.Error("fs: a request failed", "request", op, "inode", ino, "error", text)
	}
}

// fuseLog is the writer of go-fuse's log, one line a call.
type fuseLog struct{ log *slog.Logger }

// lateReply is the end of go-fuse's line about a reply to read-ahead that came after the unmount. The kernel does not wait for such a
// reply (fuse_conn_destroy in Linux's fs/fuse/inode.c) and no program misses it, so the line is left out.
var lateReply = fmt.Sprintf("err: %v. opcode: READ", fuse.ENOENT)

func (w fuseLog) Write(p []byte) (int, error) {
	if line := strings.TrimRight(string(p), "\n"); !strings.HasSuffix(line, lateReply) {
		w.log.Warn("fs: go-fuse", "text", line)
	}
	return len(p), nil
}
