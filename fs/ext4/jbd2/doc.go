// Package jbd2 is the metadata side of a volume: a cache of metadata blocks in pinned memory, and the journal that makes
// changes of several blocks atomic and durable. It knows block numbers and the journal's own format; of
// ext4's structures it knows the type of a block number alone.
//
// The nouns. A Block is a file-system block number. A Buffer is one block in memory, shared by all callers that asked
// the Cache for it, and counted: Get and New take a reference, Put drops it. A Handle is one operation's permission to change
// Buffers; the changes of a Handle become durable together. All Handles open at about the same time belong to one
// transaction, named by its TID; a commit makes the transaction durable as a whole.
//
// How a change is made:
//
//	h, err := journal.Begin(credits)  // credits: at most how many blocks this operation will dirty
//	b, err := cache.Get(block)
//	b.Lock(); change b.Data(); h.Dirty(b); b.Unlock()
//	b.Put()
//	err = h.End()
//
// Rules for callers. Handles are short: a commit waits for every open Handle, and Begin waits while a commit copies what
// is dirty. So never Begin inside another Handle of the same operation (it would wait for itself), never wait for a
// commit while holding a Handle, and do no unbounded I/O under one. Locks may be held across Begin if no open Handle ever
// waits for them. File data is written to the device before the Handle that makes it reachable ends (ordered mode).
//
// How a commit goes:
//
//  0. see to it that there is staging memory for it (budget.go);
//  1. close the gate: Begin blocks, the last open Handle ends;
//  2. copy the dirty buffers into staging memory;
//  3. open the gate: the next transaction may change the same buffers again;
//  4. flush, so that file data lies before the metadata that points at it;
//  5. write the copies: to the log, or in place on volumes without a journal;
//  6. make it durable, run the OnCommit functions, wake the waiters.
//
// One goroutine at a time does this: the first that waits for the commit, since waking another would cost more than most of
// the steps. When it is through, the first of those that wait for the next transaction goes on. What nobody waits for, because a timer, Begin
// or Close asks for it, is done by the committer, a goroutine that sleeps on a condition variable else.
// A timer runs only while a transaction has something to commit. Only copies are ever written: what a Handle does to a
// Buffer can never leak to the medium before its transaction does. A commit that finds no room on the medium, or no memory, is held
// and tried again (hold.go); any other failure, that of a flush above all, aborts the journal.
//
// How a volume with a journal is opened: NewCache; OpenLog with the journal's blocks; Log.Scan. If Recovery.Needed, then
// Recovery.Replay, Cache.Invalidate, Recovery.FastCommits (their caller writes through an OpenInPlace journal and
// closes it), Recovery.Finish; a mount that must not write calls Cache.SetOverlay(Recovery.Overlay()) instead. Then
// Log.Start. What tells other drivers to recover, ext4's needs_recovery flag, is set durably before Start and cleared
// after Journal.Close.
//
// The order of the locks is in docs/DESIGN.md, as is a transaction's life. Buffer locks belong to the callers; this
// package takes one only in Cache.New.
//
// Sources: Linux Documentation/filesystems/ext4/journal.rst ([journal] in comments).
package jbd2
