package mountopt

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// layers calls f for the options of each layer, in the order of the table.
func layers(f func(layer Layer, options []*Option)) {
	for layer := range nLayers {
		var of []*Option
		for _, o := range All() {
			if o.Layer == layer {
				of = append(of, o)
			}
		}
		f(layer, of)
	}
}

const (
	helpIndent = 6
	helpColumn = 34 // where what an option means begins
	helpWidth  = 100
)

// Help is the table for the terminal.
func Help() string {
	var b strings.Builder
	b.WriteString("Mount options (-o NAME[=VALUE],…):\n")
	layers(func(layer Layer, options []*Option) {
		fmt.Fprintf(&b, "\n  %s:\n", titles[layer])
		if options[0].Ignored() {
			b.WriteString(indented(syntaxes(options), helpIndent))
			return
		}
		for _, o := range options {
			text := o.Help
			if l := o.limits(); l != "" {
				text += " (" + l + ")"
			}
			line := strings.Repeat(" ", helpIndent) + o.Syntax()
			if len(line) > helpColumn-2 {
				b.WriteString(line + "\n")
				line = ""
			}
			text = indented(text, helpColumn)
			b.WriteString(line + text[len(line):])
		}
	})
	return b.String()
}

// syntaxes joins options as they are written.
func syntaxes(options []*Option) string {
	var all []string
	for _, o := range options {
		all = append(all, o.Syntax())
	}
	return strings.Join(all, ", ")
}

// indented breaks a text into lines that begin at a column.
func indented(text string, column int) string {
	var b strings.Builder
	line := ""
	flush := func() {
		b.WriteString(strings.Repeat(" ", column) + line + "\n")
	}
	for _, word := range strings.Fields(text) {
		if line != "" && column+len(line)+1+len(word) > helpWidth {
			flush()
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	flush()
	return b.String()
}

// AddFlags makes flags of the command line that mirror options: --NAME VALUE is -o NAME=VALUE. What is given is appended to list,
// an argument of [Parse].
func AddFlags(f *pflag.FlagSet, list *[]string, names ...string) {
	for _, name := range names {
		o := Find(name)
		usage := o.Help
		if l := o.limits(); l != "" {
			usage += " (" + l + ")"
		}
		f.Var(&flag{o, list, ""}, name, usage)
	}
}

// flag is an option as a pflag.Value.
type flag struct {
	o    *Option
	list *[]string
	text string
}

func (f *flag) String() string { return f.text }
func (f *flag) Type() string   { return f.o.arg() }

func (f *flag) Set(text string) error {
	v, err := f.o.read(text)
	if err == nil {
		var c Config
		err = f.o.set(&c, v)
	}
	if err != nil {
		return err
	}
	f.text = text
	*f.list = append(*f.list, f.o.Name+"="+text)
	return nil
}
