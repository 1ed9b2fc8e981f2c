package docs

import (
	"fmt"
	"strings"
)

// step is a part of the data path of a read.
type step struct {
	name  string   // in the picture
	does  []string // in the text, a line each
	short []string // in the picture
	next  string   // what it passes on
}

// readSteps is the data path of a read(2), from the program down.
var readSteps = []step{
	{"read(2)", nil, []string{"any program"}, "FUSE"},
	{"fs", []string{"FUSE request → inode; takes its lock shared"}, []string{"request, inode"}, "range"},
	{"ext4", []string{"maps the range of the file to extents and holes"}, []string{"extents, holes"}, "Requests"},
	{"blockdev", []string{"extents → pieces (LBA, count, place in pinned memory), one NVMe command each"}, []string{"one command", "for each piece"}, "Commands"},
	{"engine", []string{"commands → work items in a lane's ring"}, []string{"chooses a lane,", "has the deadline"}, "ring"},
	{"lane", []string{"takes a work item, writes SQE and PRP list, rings the SQ doorbell,", "polls the CQ, rings the CQ doorbell, writes a result to the ring"},
		[]string{"builds SQE, PRPs,", "polls the CQ"}, "SQ, doorbell"},
	{"controller", []string{"a drive, or softctl: reads the SQE, walks the PRPs, moves the bytes, writes the CQE"}, []string{"a drive, or", "in software"}, ""},
}

func readText() string {
	var b strings.Builder
	fmt.Fprintln(&b, readSteps[0].name)
	for _, s := range readSteps[1:] {
		for i, line := range s.does {
			name := s.name
			if i > 0 {
				name = ""
			}
			fmt.Fprintf(&b, "  │  %-11s%s\n", name, line)
		}
	}
	fmt.Fprintf(&b, "  ▼  %-11s%s\n", "fs", "replies from the buffer that the controller wrote")
	return b.String()
}

func readSVG() string {
	const w, h, pitch, margin, top = 112, 62, 190, 12, 40
	var d drawing
	at := func(i int) int { return margin + i*pitch }
	last := len(readSteps) - 1
	for i, s := range readSteps {
		d.box(at(i), top, w, h, s.name, s.short...)
		if i < last {
			d.label(at(i)+(w+pitch)/2, top+16, "small", s.next)
			d.arrow("M%d %d H%d", at(i)+w, top+22, at(i+1))
			d.arrow("M%d %d H%d", at(i+1), top+h-14, at(i)+w)
		}
	}
	d.label((at(1)+at(4)+w)/2, top-18, "small", "CPU: names, extents, journal")
	d.label(at(5)+w/2, top-18, "small", "CPU threads or a GPU")
	low := top + h + 40
	d.box(at(1), low, at(last)-at(1)+w, 32, "pinned buffer")
	d.arrow("M%d %d V%d", at(last)+w/2, top+h, low)
	d.label(at(last)+w/2+24, low-14, "small", "DMA")
	d.arrow("M%d %d H%d V%d", at(1), low+16, at(0)+w/2, top+h)
	d.label(at(0)+w/2+40, low-14, "small", "reply")
	return d.svg(at(last)+w+margin, low+32+margin, "The data path of a read: "+strings.ReplaceAll(strings.TrimSpace(readText()), "\n", "; "))
}

// ringsSVG is the rings and queues between CPU, lane and controller. Most of it is in SPEC.md.
func ringsSVG() string {
	const w, h, pitch, margin = 112, 74, 320, 12
	var d drawing
	for i, name := range []string{"CPU", "lane", "controller"} {
		d.box(margin+i*pitch, margin, w, h, name)
	}
	for i, labels := range [][2]string{{"work ring, in order of submission", "result ring, in order of completion"}, {"SQ, SQ doorbell", "CQ, CQ doorbell"}} {
		from, to := margin+i*pitch+w, margin+(i+1)*pitch
		down, up := margin+24, margin+h-14
		d.arrow("M%d %d H%d", from, down, to)
		d.label((from+to)/2, down-6, "small", labels[0])
		d.arrow("M%d %d H%d", to, up, from)
		d.label((from+to)/2, up-6, "small", labels[1])
	}
	return d.svg(2*margin+2*pitch+w, 2*margin+h, "CPU and lane share the work ring and the result ring; lane and controller the queues and doorbells.")
}
