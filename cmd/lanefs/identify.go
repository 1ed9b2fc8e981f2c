package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

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
		Long: `Enables the controller of DEVICE, sends it Identify commands, prints what it answers, and shuts it down. Nothing is
written. ADDR/NSID is one namespace of a function. With DEVICE-partN the command also prints where that partition lies.

With --ring gpu it sends one more Identify command. A GPU kernel rings the doorbell for it, and the controller writes the answer
into device memory, where the device reads and compares it. This shows that both paths work: from the device to the drive,
and from the drive to the device's memory.`,
		Args: exactly("DEVICE"),
		RunE: func(c *cobra.Command, args []string) (err error) {
			if err := mountopt.Parse(&cfg.Config, flags...); err != nil {
				return err
			}
			if err := cfg.take(args[0]); err != nil {
				return err
			}
			if cfg.Array || len(cfg.Members) > 0 {
				return usage(fmt.Errorf("%q: an array has several controllers: name one of its members", args[0]))
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
			if err := id.narrow(&cfg, log); err != nil {
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
	f.StringVar(&ring, "ring", "cpu", "what rings the admin doorbell: `cpu|gpu`, gpu is a kernel of --gpu's runtime")
	return c
}

// narrow leaves out the namespaces that were not asked for, and adds the partition that was.
func (i *identity) narrow(cfg *mountConfig, log *slog.Logger) error {
	if cfg.NSID > 0 {
		i.Namespaces = slices.DeleteFunc(i.Namespaces, func(n *namespaceReport) bool { return n.NSID != cfg.NSID })
		if len(i.Namespaces) == 0 {
			return fmt.Errorf("%s has no namespace %d: lanefs identify %[1]s lists those that it has", cfg.Device, cfg.NSID)
		}
	}
	if cfg.Part == 0 {
		return nil
	}
	reading := mountConfig{Config: mountopt.Config{GPU: "host", ReadOnly: true, LBA: cfg.LBA, NSID: cfg.NSID}, Device: cfg.Device, Part: cfg.Part}
	s, err := openDevice(&reading, log)
	if err != nil {
		return err
	}
	p, block := s.part.Part(), int64(s.dev.Info().BlockSize)
	i.Partition = &partitionReport{Number: p.Number, First: int64(p.First) * block, Size: int64(p.Blocks) * block, ID: p.ID, Name: p.Name}
	return s.Close()
}
