// Package names is directories and what their entries are changed by: lookup, create, link, remove and rename.
//
// The nouns: an entry is a name, an inode number and a kind. A directory's entries lie in its blocks, which dir.Dir reads and
// changes through a dirStore, or inline in its inode. A name must be free before it is added, and a directory whose index is
// damaged is only read.
//
// Locks: a directory before what it contains; renaming has the order for two directories.
//
// It imports volume, contents and attrs; recovery lies above it.
package names
