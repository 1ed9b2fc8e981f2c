package mountopt

import "github.com/lanefs/lanefs/cmd/lanefs/internal/roff"

// Man appends the table to a manual page, a subsection for each layer.
func Man(p *roff.Page) {
	layers(func(layer Layer, options []*Option) {
		p.Subsection(titles[layer])
		if text := about[layer]; text != "" {
			p.Paragraph(text)
		}
		if options[0].Ignored() {
			p.Paragraph("**" + syntaxes(options) + "**")
			return
		}
		for _, o := range options {
			p.Item(o.Syntax(), sentence(o.Help)+more(o.limits())+more(o.More))
		}
	})
}

// sentence makes a sentence of a line of help.
func sentence(s string) string {
	return capital(s) + "."
}

// more is a further sentence, after a space.
func more(s string) string {
	switch {
	case s == "":
		return ""
	case s[len(s)-1] == '.':
		return " " + s
	}
	return " " + sentence(s)
}

func capital(s string) string {
	if c := s[0]; c >= 'a' && c <= 'z' {
		return string(c-'a'+'A') + s[1:]
	}
	return s
}
