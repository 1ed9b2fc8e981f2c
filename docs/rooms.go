package docs

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const module = "github.com/lanefs/lanefs/"

// graph is the rooms of the product and what they import of one another.
type graph struct {
	imports map[string][]string // direct imports, without those that another import has anyway
	layer   map[string]int      // one more than the highest of the imports; 0 without any
}

// products are what is installed or imported by others. Their packages are the rooms; tests and the lab are none.
var products = []string{"./cmd/lanefs", "./sdk/go", "./sdk/go/device"}

// apart are packages whose internal packages are rooms of their own; others belong to the package that they are internal to.
var apart = []string{"fs/ext4"}

// readGraph asks go list.
func readGraph(root string) (*graph, error) {
	out, err := output(root, append([]string{"list", "-deps", "-json=ImportPath,Imports"}, products...)...)
	if err != nil {
		return nil, err
	}
	all := map[string][]string{}
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		if name, ours := strings.CutPrefix(p.ImportPath, module); ours {
			all[name] = p.Imports
		}
	}
	room := func(name string) string {
		if parent, _, internal := strings.Cut(name, "/internal/"); internal && all[parent] != nil && !slices.Contains(apart, parent) {
			return parent
		}
		return name
	}
	edges := map[string]map[string]bool{}
	for name, imports := range all {
		from := room(name)
		if edges[from] == nil {
			edges[from] = map[string]bool{}
		}
		for _, i := range imports {
			if to, ours := strings.CutPrefix(i, module); ours && room(to) != from {
				edges[from][room(to)] = true
			}
		}
	}
	g := &graph{imports: map[string][]string{}, layer: map[string]int{}}
	for name := range edges {
		if err := g.place(name, edges, nil); err != nil {
			return nil, err
		}
	}
	g.reduce(edges)
	return g, nil
}

// place finds the layer of a room, after those of its imports. above is the way to it, for the error that tells of a circle.
func (g *graph) place(name string, edges map[string]map[string]bool, above []string) error {
	if _, done := g.layer[name]; done {
		return nil
	}
	if above = append(above, name); slices.Contains(above[:len(above)-1], name) {
		return fmt.Errorf("rooms in a circle: %s", strings.Join(above, " imports "))
	}
	layer := 0
	for to := range edges[name] {
		if err := g.place(to, edges, above); err != nil {
			return err
		}
		layer = max(layer, g.layer[to]+1)
	}
	g.layer[name] = layer
	return nil
}

// reduce keeps the imports that no other import of the same room leads to.
func (g *graph) reduce(edges map[string]map[string]bool) {
	var reaches func(from, to string) bool
	reaches = func(from, to string) bool {
		return edges[from][to] || g.layer[from] > g.layer[to] && slices.ContainsFunc(slices.Collect(maps.Keys(edges[from])), func(n string) bool { return reaches(n, to) })
	}
	for name, to := range edges {
		direct := slices.Sorted(maps.Keys(to))
		g.imports[name] = slices.DeleteFunc(slices.Clone(direct), func(t string) bool {
			return slices.ContainsFunc(direct, func(n string) bool { return n != t && reaches(n, t) })
		})
	}
}

// rooms are those of a layer, or all of them, the highest first.
func (g *graph) rooms() []string {
	return slices.SortedFunc(maps.Keys(g.layer), func(a, b string) int {
		return 2*(g.layer[b]-g.layer[a]) + strings.Compare(a, b)
	})
}

// text is a line for each room: its layer, its name, what it imports.
func (g *graph) text() string {
	var b strings.Builder
	last := -1
	for _, name := range g.rooms() {
		layer := "  "
		if l := g.layer[name]; l != last {
			layer, last = fmt.Sprintf("%2d", l), l
		}
		line := fmt.Sprintf("%s  %-28s", layer, name)
		if imports := g.imports[name]; len(imports) > 0 {
			line += "→ " + strings.Join(imports, ", ")
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// columns of the picture: a room stands in that of its longest prefix, which its label leaves out.
var columns = []string{"sdk", "fs", "fs/ext4", "blockdev", "nvmeq", "gpu", "kernels"}

// column of a room, and its label there.
func column(name string) (best int, label string) {
	label = name
	for c, prefix := range columns {
		if name == prefix {
			return c, name
		}
		if rest, below := strings.CutPrefix(name, prefix+"/"); below {
			best, label = c, strings.TrimPrefix(rest, "internal/")
		}
	}
	return best, label
}

// svg draws layers as rows; imports point down.
func (g *graph) svg() string {
	const w, h, pitch, down, margin, top = 104, 28, 112, 58, 12, 84
	type cell struct{ layer, column int }
	cells, widest := map[cell][]string{}, make([]int, len(columns))
	rooms := g.rooms()
	wide := func(name string) bool { return strings.HasPrefix(name, "cmd/") } // it imports most rooms: as wide as the picture
	for _, name := range rooms {
		if !wide(name) {
			c, _ := column(name)
			at := cell{g.layer[name], c}
			cells[at] = append(cells[at], name)
			widest[c] = max(widest[c], len(cells[at]))
		}
	}
	var d drawing
	left, starts := margin, make([]int, len(columns))
	for c, prefix := range columns {
		starts[c] = left
		left += widest[c]*pitch + margin
		d.label((starts[c]+left-margin-pitch+w)/2, top-22, "small", prefix)
	}
	width := left - (pitch - w)
	x, y := map[string]int{}, map[string]int{}
	for at, names := range cells {
		for i, name := range names {
			x[name] = starts[at.column] + (widest[at.column]-len(names))*pitch/2 + i*pitch
			y[name] = top + (g.layer[rooms[0]]-1-at.layer)*down
		}
	}
	for _, name := range rooms {
		if wide(name) {
			y[name] = margin
			d.box(margin, margin, width-2*margin, h, name)
		} else {
			_, label := column(name)
			d.box(x[name], y[name], w, h, label)
		}
		for _, to := range g.imports[name] {
			fromX, toX, fromY, toY := x[name]+w/2, x[to]+w/2, y[name]+h, y[to]
			if wide(name) {
				fromX, fromY = toX, top-14
			}
			bend := 0 // around boxes between
			if fromX == toX && slices.ContainsFunc(rooms, func(n string) bool { return x[n] == x[to] && y[n] > fromY && y[n] < toY }) {
				bend = w
			}
			d.arrow("M%d %d C%d %d %d %d %d %d", fromX, fromY, fromX+bend, fromY+30, toX+bend, toY-30, toX, toY)
		}
	}
	return d.svg(width, top+g.layer[rooms[0]]*down-down+h+margin, "The rooms of LaneFS by layers. Imports point down; those that follow from others are left out.")
}
