// Package wire is the byte protocol between the daemon of a mount and programs that want files as device memory: messages
// over a unix socket, and rings in shared memory. The daemon and the Go SDK both speak it through this package; docs/SPEC.md
// has it byte by byte.
//
// The nouns: a message is a header and a body of fixed size, in one packet of a SOCK_SEQPACKET socket; it may carry rights,
// descriptors passed by SCM_RIGHTS. A request has a tag, which its reply repeats. A handle names something that the daemon
// keeps for a connection. All numbers are little-endian, offsets and lengths are bytes.
//
// Whoever receives rights owns them and closes them; messages that are refused have theirs closed here.
package wire
