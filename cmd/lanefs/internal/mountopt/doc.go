// Package mountopt has the mount options of LaneFS, those of -o, in one table.
//
// The nouns. An [Option] says how an option is written, what it means, and which layer carries it out. [Parse] reads the
// argument of -o into a [Config]. [Help] is the table as `lanefs mount --help` prints it, [Man] as the manual page has it, and
// [AddFlags] makes flags of the command line from it.
//
// An option is one entry of the table: the parser, the help, the manual page and the flags follow.
package mountopt
