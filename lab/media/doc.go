// Package media is a matrix of failing media and of programs that write to a LaneFS mount on one and note what they were told is durable.
// Its tests drive the binary over an image on a file system that fails (lab/faultfs), and then look: e2fsck repairs nothing but what a
// power cut leaves, and what was acknowledged is there after the next mount. Nothing that was lost is acknowledged, and who unmounts is told.
//
// LANEFS_MEDIA_ROUNDS=N runs the matrix N times, each time with other moments for the faults.
package media
