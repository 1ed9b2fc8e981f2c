// Package docs has the documents, draws their pictures, and tests what they claim about the code.
//
// Generate makes what is generated: the SVG files, and sections of the Markdown files, each between two lines
//
//	<!-- generated: NAME -->
//	<!-- end: NAME -->
//
// `make docs` writes them into the tree; TestGenerated compares them with what is committed.
package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// documents may have generated sections.
var documents = []string{"README.md", "docs/*.md", "sdk/*/README.md"}

// Generate returns the files below root that are generated, or have generated sections, with what should be in them.
func Generate(root string) (map[string]string, error) {
	g, err := readGraph(root)
	if err != nil {
		return nil, err
	}
	files := map[string]string{"docs/rooms.svg": g.svg(), "docs/read.svg": readSVG(), "docs/rings.svg": ringsSVG()}
	sections := map[string]string{"rooms": g.text(), "read": readText()}
	for _, pattern := range documents {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			name, err := filepath.Rel(root, path)
			if err != nil {
				return nil, err
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			text, err := fill(root, string(b), sections)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if strings.Contains(text, "<!-- generated: ") {
				files[name] = text
			}
		}
	}
	return files, nil
}

var section = regexp.MustCompile(`(?ms)^<!-- generated: ([^\n]+) -->\n.*?^<!-- end: ([^\n]+) -->$`)

// fill replaces what is between the markers of text. A section named `lanefs ARGUMENTS` has what that command prints.
func fill(root, text string, sections map[string]string) (string, error) {
	var first error
	text = section.ReplaceAllStringFunc(text, func(old string) string {
		m := section.FindStringSubmatch(old)
		body, err := sections[m[1]], error(nil)
		switch args, isCommand := strings.CutPrefix(m[1], "lanefs "); {
		case m[1] != m[2]:
			err = fmt.Errorf("section %q ends as %q", m[1], m[2])
		case isCommand:
			body, err = output(root, append([]string{"run", "./cmd/lanefs"}, strings.Fields(args)...)...)
		case body == "":
			err = fmt.Errorf("section %q: no such generator", m[1])
		}
		if first == nil {
			first = err
		}
		return fmt.Sprintf("<!-- generated: %s -->\n```\n%s\n```\n<!-- end: %s -->", m[1], strings.TrimRight(body, "\n"), m[1])
	})
	return text, first
}

// output runs the go command in root.
func output(root string, args ...string) (string, error) {
	c := exec.Command("go", args...)
	c.Dir = root
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out), nil
}
