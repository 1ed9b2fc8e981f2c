package bench

import (
	"encoding/xml"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// drawn is one element of a drawing, with its title, if it has one.
type drawn struct {
	name, title string
	attr        map[string]string
	text        string
}

func (d *drawn) number(t *testing.T, attr string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(d.attr[attr], 64)
	require.NoError(t, err, "%s of %+v", attr, d)
	return n
}

// elements are those of a drawing, in order; a drawing that is no XML fails.
func elements(t *testing.T, svg string) (all []*drawn) {
	t.Helper()
	var open []*drawn
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			require.Empty(t, open)
			return all
		}
		require.NoError(t, err)
		switch x := token.(type) {
		case xml.StartElement:
			e := &drawn{name: x.Name.Local, attr: map[string]string{}}
			for _, a := range x.Attr {
				e.attr[a.Name.Local] = a.Value
			}
			open = append(open, e)
			if e.name != "title" {
				all = append(all, e)
			}
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			if n := len(open); n > 1 && open[n-1].name == "title" {
				open[n-2].title += string(x)
			} else if n > 0 {
				open[n-1].text += string(x)
			}
		}
	}
}

// TestSVG: a drawing is XML whatever a drive calls itself; it has each measurement's commands a second to one scale, the latencies from p50 to p99.99 of reads
// and of writes, each further to the right, and the steps of a command one behind the other, as long as they took.
func TestSVG(t *testing.T) {
	times := func(unit time.Duration) *Times {
		return &Times{Count: 9, Mean: 2 * unit, Least: unit / 2, P50: unit, P90: 2 * unit, P95: 3 * unit, P99: 10 * unit, P999: 50 * unit, P9999: 100 * unit, Most: 200 * unit}
	}
	lanes := NewLine(Job{Block: 4096, Lanes: 2, Depth: 8, Reads: 70})
	lanes.IOPS, lanes.Read, lanes.Write = 1000, times(3*time.Microsecond), times(20*time.Microsecond)
	for i, name := range StepNames {
		lanes.Steps = append(lanes.Steps, StepTimes{name, Times{Mean: time.Duration(i+1) * time.Microsecond}})
	}
	beside := NewLine(Job{Block: 4096, Lanes: 2, Depth: 8, Reads: 70})
	beside.By, beside.Doorbell, beside.IOPS, beside.Read = "fio", "", 250, times(5*time.Microsecond)
	refused := NewLine(Job{Block: 4096, Lanes: 2, Depth: 8, Reads: 100, Mode: 11})
	refused.Refused = "memory <mode> & more"
	r := Report{Device: "/dev/<odd>&co", Model: `A "drive" & more`, Simulated: true, Runs: []*Line{lanes, beside, refused}}

	var bars, steps []*drawn
	circles := map[string][]*drawn{} // by height
	var heights []string
	var said []string
	for _, e := range elements(t, r.SVG()) {
		class := e.attr["class"]
		switch {
		case e.name == "rect" && (class == "bar" || class == "fio"):
			bars = append(bars, e)
		case e.name == "rect" && e.title != "":
			steps = append(steps, e)
		case e.name == "circle":
			if circles[e.attr["cy"]] == nil {
				heights = append(heights, e.attr["cy"])
			}
			circles[e.attr["cy"]] = append(circles[e.attr["cy"]], e)
		}
		said = append(said, e.text+"|"+e.title)
	}
	text := strings.Join(said, "\n")
	for _, want := range []string{r.Device, r.Model, "SIMULATED", "not measured|" + refused.Refused, "1000", "250"} {
		require.Contains(t, text, want)
	}
	require.Len(t, bars, 2)
	require.InDelta(t, 4, bars[0].number(t, "width")/bars[1].number(t, "width"), .1)
	require.Len(t, heights, 3, "reads, writes, and what is beside them")
	for i, unit := range []time.Duration{3 * time.Microsecond, 20 * time.Microsecond, 5 * time.Microsecond} {
		row := circles[heights[i]]
		require.Len(t, row, 5)
		for k, want := range []string{"p50", "p90", "p99", "p99.9", "p99.99"} {
			require.True(t, strings.HasPrefix(row[k].title, want+" "), "%s of %v: %q", want, unit, row[k].title)
			if k > 0 {
				require.Greater(t, row[k].number(t, "cx"), row[k-1].number(t, "cx"))
			}
		}
	}
	require.Len(t, steps, len(StepNames))
	for i, e := range steps {
		require.True(t, strings.HasPrefix(e.title, StepNames[i]+" "), "%q", e.title)
		require.InDelta(t, float64(i+1), e.number(t, "width")/steps[0].number(t, "width"), .1)
		if i > 0 {
			require.InDelta(t, steps[i-1].number(t, "x")+steps[i-1].number(t, "width"), e.number(t, "x"), .2)
		}
	}
}
