// Package device moves pieces of files of a LaneFS mount into memory that a GPU knows, and out of it, in the order of the program's streams. It needs
// the C library, liblanefs.so.1, which it opens at run time: a program is built without a C compiler and without cgo, and New says what
// to do where the library is not. Programs that import this package are linked to libc; package lanefs needs neither.
//
// The nouns. A Stage is ordinary memory through which the bytes pass, with a connection of its own to the daemon of a mount. A File is a file that
// the stage knows. Memory is named by its address: what cudaMalloc, hipMalloc or the driver's interface have given, managed and pinned
// memory too. A stream is a CUstream or a hipStream_t, as a number; 0 is the default stream. Offsets and lengths are bytes.
//
// A batch is many pieces by one call:
//
//  1. Read and Write wait for the file. Memory of a GPU is written to and read in the stream's order: after what is on the stream now, before what is put
//     there later. Few pieces go by the copy engine, many by one launch of a kernel.
//  2. ReadAsync and WriteAsync return at once. The file is read or written when the stream gets there, and what is put on the stream later sees the
//     bytes. When the stream has come past it, Batch.Result has the results.
//
// Results of a batch on a stream are in memory that the garbage collector neither moves nor frees until the batch has ended. Nobody has to free
// it: the next batch on a stream, Result, File.Close and Stage.Close find that it has ended.
//
// No address may be of memory that Go's garbage collector manages: lanefs.Stage moves pieces into slices.
package device
