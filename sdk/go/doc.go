// Package lanefs lets a program have files of a LaneFS mount as device memory.
//
// The nouns. A Session is a connection to the daemon of one mount. A Buffer is device memory: a range of a file, shared by
// all who map it, or the program's own to write to. A Ring moves ranges of files into and out of memory that the program
// has registered, thousands at a time. Offsets and lengths are bytes.
//
// A Buffer is a snapshot with a generation. When the file changes, the buffer keeps its bytes and is no longer Current; map
// the file again to see the new ones. Everything that a session gave ends with it, but for memory that the program has
// mapped itself.
//
// With the daemon's host runtime device memory is ordinary memory, and a Buffer has Bytes. With a GPU, Import
// maps it in Go by gpu/cuda or gpu/hip, and Export is the descriptor for another library.
package lanefs
