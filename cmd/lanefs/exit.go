package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/nearest"
)

// Exit statuses. A command ends with 0 if it did what it says, else with exitFailed, or with exitUsage if it did not understand its
// arguments and tried nothing. `lanefs check` has those of fsck(8), and a mount helper those of mount(8).
const (
	exitFailed = 1
	exitUsage  = 2

	fsckErrors      = 4 // errors on the volume were left as they are
	fsckOperational = 8
	fsckUsage       = 16

	mountUsage  = 1
	mountFailed = 32
)

// exitError is an error that says with which status the command ends. Without err nothing is printed: the command has said it.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usage marks err as one about the arguments.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{exitUsage, err}
}

// status is what the program that was called by the name argv0 ends with after command c has returned err.
func status(argv0 string, c *cobra.Command, err error) int {
	if err == nil {
		return 0
	}
	code := exitFailed
	var e *exitError
	if errors.As(err, &e) {
		code = e.status
	}
	helper := mountHelper(filepath.Base(argv0)) != ""
	switch {
	case code > exitUsage:
		return code
	case helper && code == exitUsage:
		return mountUsage
	case helper:
		return mountFailed
	case c != nil && c.Name() == "check" && code == exitUsage:
		return fsckUsage
	case c != nil && c.Name() == "check":
		return fsckOperational
	}
	return code
}

// checkUsage makes the errors of a command's arguments, and of those below it, usage errors.
func checkUsage(c *cobra.Command) {
	if args := c.Args; args != nil {
		c.Args = func(c *cobra.Command, a []string) error { return usage(args(c, a)) }
	}
	for _, sub := range c.Commands() {
		checkUsage(sub)
	}
}

// flagError names the flag and its value, as errors of -o name the option.
func flagError(c *cobra.Command, err error) error {
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) && bad.Unwrap() != nil {
		err = fmt.Errorf("--%s %q: %w", bad.GetFlag().Name, bad.GetValue(), bad.Unwrap())
	} else {
		err = fmt.Errorf("%w; %s lists the flags", err, helpOf(c))
	}
	return usage(err)
}

// helpOf is the command that explains c.
func helpOf(c *cobra.Command) string { return strings.TrimSpace("lanefs help " + commandName(c)) }

// commandName is a command as it is typed behind lanefs.
func commandName(c *cobra.Command) string {
	return strings.TrimSpace(strings.TrimPrefix(c.CommandPath(), c.Root().Name()))
}

// subcommand is the Args of a command that only has others below it.
func subcommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return unknownCommand(c, args[0])
}

// unknownCommand is the error for a name that no command below c has.
func unknownCommand(c *cobra.Command, name string) error {
	var names []string
	for _, sub := range c.Commands() {
		if sub.Name() == name {
			return fmt.Errorf("the command %q is behind \"--\", where no command is looked for: put it before that", name)
		}
		if !sub.Hidden {
			names = append(names, sub.Name())
		}
	}
	lists := helpOf(c)
	if meant := nearest.Of(name, names); meant != "" {
		return fmt.Errorf("unknown command %q: did you mean %q? (%s lists all)", name, meant, lists)
	}
	return fmt.Errorf("unknown command %q: %s lists all", name, lists)
}
