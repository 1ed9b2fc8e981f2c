// Package share serves files of a mount as device memory, over a unix socket. Package wire has the protocol. share knows sockets and
// permissions. Which ranges are resident is the business of package residency, and reading and writing files that of package fs.
//
// The nouns. A Server has connections, one for each client. A handle is a number by which a connection names what it has: a mapping
// (a hold on memory of the pool), a memory (the program's own, registered), a file, a ring. The notice board is memory that a
// client can read and only the daemon can write; it holds the generation of each mapping. A ring is a pair of queues of transfers in
// memory that client and daemon share. The ledger counts what each user has, and refuses what exceeds the Limits.
//
// A map: a program maps a range of a file.
//
//  1. The program sends Map with an open descriptor of the file.  sdk/go: (*Session).Map
//  2. The gate, a process of its own, receives the message and looks at the descriptor. It makes the kernel write back the file's dirty
//     pages, and passes the inode number and the open flags on.  (*relay).up in gate
//  3. The connection's goroutine decodes the request and takes a reference on the inode. The descriptor's flags are the permission: a
//     private mapping needs a file that is open for writing, any other one that is open for reading.  (*conn).mapFile in map.go
//  4. The pool finds the range resident and current (then go on with 7), or makes room by evicting ranges without holds, and allocates
//     memory.  residency: (*Pool).Map
//  5. The range is cut into parts, which loaders take one after the other, in parallel.  load in transfer.go
//  6. ext4 maps each part to extents, and the device reads them straight into the memory.  (*fs.External).Read; ext4: ReadInto
//  7. The generation at which the bytes were read is stored on the notice board. Later changes of the range store a newer one there.
//     (*conn).share
//  8. The memory is exported as a descriptor, sealed against writing where the runtime can, and sent with the reply. The gate passes it
//     on.  (*relay).down in gate
//  9. The program imports the descriptor, by mmap(2) or by its GPU's runtime.  sdk/go: (*Buffer).Bytes, Import
//
// Possession of an open descriptor is the permission. No path is looked up.
//
// Who owns what. Each connection is served by one goroutine, which does one request at a time. All handles end with the connection; if the client goes while a
// request is under way, those that it does not use end at once, beside it. A ring has two goroutines that take submissions, one at a time, and workers that carry
// them out.
//
// Lock order: conn.mu, ring.mu; places.mu and ledger.mu are leaves. What may wait for the device is called with none of them.
//
// A slow client delays no writer. The new generation of a mapping is stored on the notice board before the call that changed the file
// returns, and that store never waits. A client that does not read its replies is disconnected.
package share
