package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// once is a flag's value that does not change: who gives a flag twice, with two values, is told, for one of them would be ignored. Lists, such as -o, are given as often as one likes.
type once struct {
	pflag.Value
	text  string
	given bool
}

func (o *once) Set(text string) error {
	if o.given && o.text != text {
		return fmt.Errorf("was given before as %q: which of the two?", o.text)
	}
	if err := o.Value.Set(text); err != nil {
		return err
	}
	o.text, o.given = text, true
	return nil
}

// onlyOnce has each flag that is no list be given once.
func onlyOnce(flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		if _, list := f.Value.(pflag.SliceValue); !list {
			f.Value = &once{Value: f.Value}
		}
	})
}

// plainHelp has the help of c, and of the commands below it, know the kinds of flags by their own values: it prints no default that is zero.
func plainHelp(c *cobra.Command) {
	help := c.HelpFunc()
	c.SetHelpFunc(func(c *cobra.Command, args []string) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if o, ok := f.Value.(*once); ok {
				f.Value = o.Value
			}
		})
		help(c, args)
	})
}
