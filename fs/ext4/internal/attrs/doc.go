// Package attrs is what a file has besides its contents: what stat reports, flags, extended attributes and ACLs. It also
// begins and ends inodes: New allocates one, End frees one whose last reference and last link are gone.
//
// The nouns: Attr is what stat reports, a Change is what chmod, chown, truncate and utimes ask for. An attribute has an index
// and a name; its value lies in the inode's body, in a block that several inodes may share, or in an inode of its own
// (eaCount counts the references to these).
//
// It imports volume and contents; names and recovery lie above it.
package attrs
