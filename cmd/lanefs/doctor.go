package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/doctor"
	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/uring"
	"github.com/lanefs/lanefs/gpu"
)

func doctorCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "doctor [--json]",
		Short: "say what works on this machine, what does not, and the remedy",
		Long: `Examines this machine and prints what it finds, and the remedy for what is missing: what every mount needs, what can run the lanes, the
kernel, the IOMMU, drives and their users, GPUs, the paths between them, and which memory modes and doorbell routes are possible. At the end
it lists what to do next, in order, with commands to paste. Nothing is changed. Run it as the user who will mount: it checks
whether that user may open the device nodes. Only root sees other users' open files.

The exit status is 0 if image files can be mounted, else 1; what a drive or a GPU lacks does not change it.`,
		Args: exactly0,
		RunE: func(c *cobra.Command, _ []string) error {
			r := doctor.Examine(doctor.Options{Runtimes: examinedRuntimes(nil), Rings: doctor.Rings{Auto: fs.IOUringAuto.Wanted(), Try: uring.Try}})
			var err error
			if asJSON {
				err = printJSON(c.OutOrStdout(), "doctor", r)
			} else {
				err = r.Print(c.OutOrStdout())
			}
			if err == nil && !r.Healthy() {
				err = errors.New("image files cannot be mounted on this machine; see above")
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// examinedRuntimes are those that --gpu names.
func examinedRuntimes(stop <-chan struct{}) (all []doctor.Runtime) {
	quiet := slog.New(slog.DiscardHandler)
	for _, name := range []string{"host", "cuda", "hip"} {
		all = append(all, doctor.Runtime{Name: name, Needed: name == "host",
			Open:    func() (gpu.Runtime, error) { return openNamed(name, quiet, stop) },
			Further: func(n int) (gpu.Runtime, error) { return openOne(name, strconv.Itoa(n), false, quiet, stop) }})
	}
	return all
}

func exactly0(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no arguments, got %q", c.Name(), args)
	}
	return nil
}
