package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func helpCommand() *cobra.Command {
	var man bool
	c := &cobra.Command{
		Use:   "help [--man] [COMMAND]",
		Short: "say what a command does",
		Long: `Prints the help of a command, or of all. With --man it prints the source of a manual page: lanefs(8), or mount.lanefs(8) if the
COMMAND is mount.`,
		RunE: func(c *cobra.Command, args []string) error {
			about, rest, err := c.Root().Find(args)
			if err != nil || len(rest) > 0 {
				if len(rest) == 0 {
					rest = args
				}
				return usage(fmt.Errorf("help: %w", unknownCommand(about, rest[0])))
			}
			switch {
			case !man:
				about.InitDefaultHelpFlag()
				return about.Help()
			case about == c.Root():
				fmt.Fprint(c.OutOrStdout(), commandPage(about))
			case about.Name() == "mount":
				fmt.Fprint(c.OutOrStdout(), mountPage())
			default:
				return fmt.Errorf("help --man: %s is in lanefs(8): give no command, or mount", about.Name())
			}
			return nil
		},
	}
	c.Flags().BoolVar(&man, "man", false, "print the source of a manual page")
	return c
}
