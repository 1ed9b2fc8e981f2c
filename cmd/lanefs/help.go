package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

func helpCommand() *cobra.Command {
	var man bool
	var pages string
	c := &cobra.Command{
		Use:   "help [--man] [COMMAND]",
		Short: "explain a command",
		Long: `Prints the help of a command, or of all. With --man it prints the source of a manual page: lanefs(8), or the command's.
lanefs help --man mount prints mount.lanefs(8).`,
		RunE: func(c *cobra.Command, args []string) error {
			about, rest, err := c.Root().Find(args)
			if err != nil || len(rest) > 0 {
				if len(rest) == 0 {
					rest = args
				}
				return usage(fmt.Errorf("help: %w", unknownCommand(about, rest[0])))
			}
			switch {
			case pages != "":
				for name, text := range manPages(c.Root()) {
					if err := os.WriteFile(filepath.Join(pages, name), []byte(text), 0o644); err != nil {
						return err
					}
				}
			case !man:
				about.InitDefaultHelpFlag()
				return about.Help()
			case about == c.Root():
				fmt.Fprint(c.OutOrStdout(), commandPage(about))
			case about.Name() == "mount":
				fmt.Fprint(c.OutOrStdout(), mountPage())
			case about.HasSubCommands():
				return usage(fmt.Errorf("help --man: %s has no page of its own: give one of its commands", about.Name()))
			default:
				fmt.Fprint(c.OutOrStdout(), onePage(about))
			}
			return nil
		},
	}
	c.Flags().BoolVar(&man, "man", false, "print the source of a manual page")
	c.Flags().StringVar(&pages, "man-pages", "", "write all manual pages into a directory")
	_ = c.Flags().MarkHidden("man-pages") // for go generate
	return c
}
