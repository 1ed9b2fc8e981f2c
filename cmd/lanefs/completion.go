package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/mountopt"
)

// `lanefs completion SHELL` prints what a shell needs to complete commands, flags, mount options and their values; make install places it.

// completeOptions completes the last of the options that -o has so far.
func completeOptions(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	done := typed[:strings.LastIndexByte(typed, ',')+1]
	var all []string
	for _, o := range mountopt.All() {
		if o.Ignored() {
			continue
		}
		name, _, valued := strings.Cut(o.Syntax(), "=")
		if valued {
			name += "="
		}
		all = append(all, done+name+"\t"+o.Help)
		for _, v := range o.Values {
			if strings.HasPrefix(typed, done+name) {
				all = append(all, done+name+v)
			}
		}
	}
	return all, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}

// completeValues completes the value of a flag that mirrors a mount option.
func completeValues(option string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return mountopt.Find(option).Values, cobra.ShellCompDirectiveNoFileComp
	}
}
