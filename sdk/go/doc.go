// Package lanefs maps files of a LaneFS mount as device memory.
//
// The nouns. A Session is a connection to the daemon of one mount. A Buffer is device memory: a range of a file, shared by all programs
// that map it, or private memory that the program may write to and commit to a file. A Ring moves ranges of files into and out of Memory
// that the program has registered, thousands at a time. Offsets and lengths are bytes.
//
// Mapping a range:
//
//  1. Connect finds the daemon's socket by an attribute of the file, and connects.
//  2. Session.Map passes the file's descriptor. The daemon reads the range into device memory unless it is there already.
//  3. The reply carries a descriptor of the memory. Buffer.Bytes is its mapping on the CPU, Buffer.Import maps it on a GPU.
//  4. Session.Wait returns when a buffer may be stale. Buffer.Current checks one buffer, and Map maps the new bytes.
//
// A Buffer is a snapshot with a generation. When the file changes, the buffer keeps its bytes and is no longer Current. All objects of a
// session end with it, except memory that the program has mapped itself.
//
// With the daemon's host runtime device memory is ordinary memory, and a Buffer has Bytes. With a GPU, Import maps it by a runtime of
// gpu/cuda or gpu/hip, and Export returns the descriptor for another library.
//
// A Stage moves pieces of files into slices, which the daemon does not know. Package device does so for memory of a GPU.
package lanefs
