// Package wire is the protocol between the daemon of a mount and programs that use its files as device memory: messages over a unix socket,
// and rings in shared memory. The daemon and the Go SDK use this package. docs/SPEC.md describes the bytes.
//
// The nouns: a message is a header and a body of fixed size, in one packet of a SOCK_SEQPACKET socket; it may carry rights,
// descriptors passed by SCM_RIGHTS. A request has a tag, which its reply repeats. A handle is a number for an object that the
// daemon keeps for a connection. Numbers are little-endian, offsets and lengths are bytes.
//
// The receiver of a message owns its rights and must close them. Rights of malformed messages are closed here.
package wire
