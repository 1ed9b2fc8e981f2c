package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/mountopt"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
)

func identifyCommand() *cobra.Command {
	var cfg mountConfig
	var flags []string // that mirror mount options
	var asJSON bool
	var ring string
	c := &cobra.Command{
		Use:   "identify DEVICE",
		Short: "print what the controller and its namespaces report",
		Long: `Brings the controller of DEVICE up, sends it Identify commands, prints what it answers, and shuts it down. Nothing is
written.

With --ring gpu one more Identify command is sent, whose doorbell a kernel of the runtime rings, and whose answer the
controller writes into device memory. It is read back there by the device and compared: both paths, from the device to the
drive and from the drive to the device's memory, are then known to work.`,
		Args: exactly("DEVICE"),
		RunE: func(c *cobra.Command, args []string) (err error) {
			if cfg.Device, err = resolveDevice(args[0]); err != nil {
				return err
			}
			if err := mountopt.Parse(&cfg.Config, flags...); err != nil {
				return err
			}
			if ring != "cpu" && ring != "gpu" {
				return fmt.Errorf("--ring %q: want cpu or gpu", ring)
			}
			cfg.MemoryMode, cfg.Doorbell = new(controller.MemoryMode), engine.DoorbellBAR // there are no lanes to choose for
			log := warnings(c.ErrOrStderr())
			ctl, err := openController(&cfg, nil, log)
			if errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) {
				cfg.ReadOnly = true // the controller then says that it is write protected, which is so
				ctl, err = openController(&cfg, nil, log)
			}
			if err != nil {
				return err
			}
			id, err := ctl.identity(ring == "gpu")
			if err := errors.Join(err, ctl.Close()); err != nil {
				return err
			}
			if !asJSON {
				return id.print(c.OutOrStdout())
			}
			return printJSON(c.OutOrStdout(), "identify", id)
		},
	}
	f := c.Flags()
	mountopt.AddFlags(f, &flags, "gpu", "lba", "vram")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.StringVar(&ring, "ring", "cpu", "what rings the admin doorbell: `cpu|gpu`, gpu being a kernel of --gpu's runtime")
	return c
}
