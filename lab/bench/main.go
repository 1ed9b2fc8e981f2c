// Command bench is `make bench`: the same work on LaneFS, a null file system, fuse2fs and the kernel's ext4 on a loop device, each on an
// image of its own in RAM, in one run. The systems take turns; the tables show medians, ratios, and what the work cost the daemon.
//
// -ways chooses the systems, one column each: lanefs, or lanefs:OPTIONS with further mount options joined by "+"
// (lanefs:io_uring=on+writeback_cache); null, on the transport that LaneFS's first column uses, null:fuse or null:io_uring; fuse2fs;
// fuse2fs:PATH; kernel.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	var b bench
	flag.StringVar(&b.lanefs, "lanefs", "./lanefs", "the binary to measure")
	flag.StringVar(&b.where, "dir", "/dev/shm", "where the images go; by default memory")
	flag.StringVar(&b.tree, "tree", "", "the tree to copy (default: the source tree of Go)")
	flag.StringVar(&b.options, "o", "", "mount options of LaneFS, for each of its columns")
	flag.StringVar(&b.newer, "fuse2fs", "", "one more fuse2fs to measure, by its path")
	flag.StringVar(&b.ways, "ways", "lanefs,null,fuse2fs,kernel", "systems to run, separated by commas")
	flag.StringVar(&b.only, "rows", "", "rows to run, by the words with which they begin, separated by commas (default: all but walk)")
	flag.StringVar(&b.json, "json", "", "a file for all figures")
	flag.BoolVar(&b.markdown, "markdown", false, "print tables in Markdown")
	flag.IntVar(&b.runs, "runs", 5, "runs of each; the median counts")
	svg := flag.String("svg", "", "draw the JSON files of earlier runs, or the tables of a document, the arguments, as this picture, and measure nothing")
	doc := flag.String("document", "", "put the JSON files of earlier runs, the arguments, as tables into this document, and measure nothing")
	serve := flag.String("serve", "", "internal: serve a null file system on this transport")
	flag.Parse()
	var err error
	switch {
	case *serve != "":
		err = serveNull(*serve, flag.Arg(0))
	case *doc != "":
		err = document(*doc, flag.Args()...)
	case *svg != "":
		err = plot(*svg, flag.Args()...)
	default:
		err = b.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: FAILED:", err)
		os.Exit(1)
	}
}
