// Package recovery brings a volume into use: it opens the journal, replays what an earlier mount left in it, and finishes the
// files which that mount could not finish.
//
// The nouns: a Journal is the volume's journal as this mount found it. Fast commits are records of what was done since the last
// whole transaction, which the kernel writes; replaying does the operations again. Orphans are deleted or half truncated
// files. An Inspection is what can be said of a volume without changing it.
//
// Start has the steps in their order. The package is the highest room of ext4: it imports all others.
package recovery
