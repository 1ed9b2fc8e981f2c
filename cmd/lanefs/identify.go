package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
	"github.com/lanefs/lanefs/nvmeq"
)

func identifyCommand() *cobra.Command {
	var cfg mountConfig
	c := &cobra.Command{
		Use:   "identify DEVICE",
		Short: "print what the controller and its namespaces report",
		Long: `Brings the controller of DEVICE up, sends it Identify commands, prints what it answers, and shuts it down. Nothing is
written.`,
		Args: exactly("DEVICE"),
		RunE: func(c *cobra.Command, args []string) (err error) {
			if cfg.Device, err = resolveDevice(args[0]); err != nil {
				return err
			}
			if err := checkGPU(cfg.GPU); err != nil {
				return fmt.Errorf("--gpu %q: %w", cfg.GPU, err)
			}
			log := slog.New(slog.NewTextHandler(c.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
			ctl, err := openController(&cfg, log)
			if errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) {
				cfg.ReadOnly = true // the controller then says that it is write protected, which is so
				ctl, err = openController(&cfg, log)
			}
			if err != nil {
				return err
			}
			return errors.Join(ctl.print(c.OutOrStdout()), ctl.Close())
		},
	}
	c.Flags().StringVar(&cfg.GPU, "gpu", "auto", "what drives the controller: auto, host, hip or cuda")
	c.Flags().IntVar(&cfg.LBA, "lba", 0, "block size of a software controller")
	return c
}

// print writes the answers under the specification's names.
func (c *controller) print(out io.Writer) error {
	n, id := c.nvme, c.nvme.Identify()
	how := ""
	if n.Simulated() {
		how = " (simulated: the controller is software)"
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "controller\t%s%s\n", n.Name(), how)
	fmt.Fprintf(w, "  MN\t%s\n  SN\t%s\n  FR\t%s\n", id.MN, id.SN, id.FR)
	fmt.Fprintf(w, "  VS\t%v\n", n.Version())
	fmt.Fprintf(w, "  VID, SSVID\t%04xh, %04xh\n", id.VID, id.SSVID)
	fmt.Fprintf(w, "  SUBNQN\t%s\n", id.SUBNQN)
	mdts := "no limit"
	if m := n.MaxTransfer(); m > 0 {
		mdts = units.Bytes(m)
	}
	fmt.Fprintf(w, "  MDTS\t%d (%s)\n", id.MDTS, mdts)
	fmt.Fprintf(w, "  I/O queue pairs\t%d, up to %d entries each\n", n.Queues(), n.Capabilities().MQES())
	fmt.Fprintf(w, "  volatile write cache\t%s\n", yesNo(id.VWC.Present()))
	fmt.Fprintf(w, "  Write Zeroes\t%s\n  Dataset Management\t%s\n  Doorbell Buffer Config\t%s\n",
		yesNo(id.ONCS.WriteZeroes()), yesNo(id.ONCS.DSM()), yesNo(id.OACS.DoorbellBuf()))
	fmt.Fprintf(w, "  SGLS\t%08xh\n", id.SGLS)
	for _, ns := range n.Namespaces() {
		printNamespace(w, ns)
	}
	return w.Flush()
}

func printNamespace(w io.Writer, ns *nvmeq.Namespace) {
	fmt.Fprintf(w, "namespace\t%d\n", ns.ID)
	if ns.Unusable != nil {
		fmt.Fprintf(w, "  not usable\t%v\n", ns.Unusable)
	}
	id := ns.Identify
	if ns.BlockSize > 0 {
		fmt.Fprintf(w, "  size\t%d blocks of %d bytes (%s)\n", ns.Blocks, ns.BlockSize, units.Bytes(int64(ns.Blocks)*ns.BlockSize))
	}
	fmt.Fprintf(w, "  NCAP, NUSE\t%d, %d\n", id.NCAP, id.NUSE)
	if ns.ReadOnly {
		fmt.Fprintf(w, "  write protected\tyes\n")
	}
	fmt.Fprintf(w, "  NGUID\t%x\n  EUI64\t%x\n  UUID\t%x\n", id.NGUID, id.EUI64, ns.Descriptor.UUID)
	for i, f := range id.Formats {
		use := ""
		if i == id.FormatIndex() {
			use = ", in use"
		}
		if f.BlockSize() > 0 {
			fmt.Fprintf(w, "  LBA format %d\t%d bytes, %d of metadata, performance %d%s\n", i, f.BlockSize(), f.MS(), f.RP(), use)
		}
	}
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
