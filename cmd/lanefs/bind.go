package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lanefs/lanefs/gpu/vfio/pci"
	"github.com/lanefs/lanefs/nvmeq/pcie"
)

func bindCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "bind ADDR",
		Short: "hand a PCI function to user space (vfio-pci)",
		Long: `Takes the PCI function at ADDR from its kernel driver and binds it to vfio-pci, so that lanefs mount can open it. The
command refuses while anything on the function is in use (mounted, swap space, part of md, LVM or another dm device, or open in a
program), while another driver has a device of the same IOMMU group, and while the function has virtual functions (SR-IOV), which
would end. A virtual function is bound like any other.`,
		Args: exactly("ADDR"),
		RunE: func(c *cobra.Command, args []string) error { return bind(c.OutOrStdout(), args[0]) },
	}
}

func unbindCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "unbind ADDR",
		Short: "give a PCI function back to the kernel's driver",
		Long: `Takes the PCI function at ADDR from vfio-pci and returns it to the kernel's driver. The command refuses while a program has
the function open, such as the daemon of a mount.`,
		Args: exactly("ADDR"),
		RunE: func(c *cobra.Command, args []string) error { return unbind(c.OutOrStdout(), args[0]) },
	}
}

func bind(out io.Writer, arg string) error {
	a, err := pci.ParseAddress(arg)
	if err != nil {
		return err
	}
	f, err := pci.System{}.Function(a)
	if err != nil {
		return err
	}
	switch {
	case f.Driver == pci.VFIO:
		fmt.Fprintf(out, "%s is bound to %s already\n", a, pci.VFIO)
		return nil
	case f.Bridge():
		return fmt.Errorf("%s is a bridge: other devices are reached through it", a)
	case f.Group == "":
		return fmt.Errorf("%s is in no IOMMU group: switch the IOMMU on (in the firmware, and intel_iommu=on or amd_iommu=on)", a)
	}
	if v := f.Virtual(); len(v) > 0 {
		return fmt.Errorf("%s has virtual functions (%s), and they end with its driver: switch them off first (echo 0 > %s)", a, v[0], f.SysPath("sriov_numvfs"))
	}
	if err := unused(f); err != nil {
		return err
	}
	// The claim keeps every other program from beginning to use what unused has found unused, until the kernel's driver has gone.
	release, err := pcie.Claim(f)
	if err != nil {
		return fmt.Errorf("%s cannot be bound: %w", a, err)
	}
	defer release()
	was := f.Driver
	defer heldOff()() // between two drivers the function has none
	if err := f.Rebind(pci.VFIO); err != nil {
		return errors.Join(fmt.Errorf("binding %s: %w", a, err), f.Rebind("")) // the driver that had it gets it back
	}
	virtual := ""
	if f.Physical != "" {
		virtual = "; it is a virtual function of " + string(f.Physical)
	}
	fmt.Fprintf(out, "%s is bound to %s%s%s\n", a, pci.VFIO, previousDriver(was), virtual)
	return nil
}

func previousDriver(driver string) string {
	if driver == "" {
		return ""
	}
	return ", was " + driver
}

// unused refuses a function that is in use, naming the users.
func unused(f *pci.Function) error {
	users, err := pcie.Users(f)
	if err != nil {
		return err
	}
	var in []string
	for _, u := range users {
		in = append(in, u.String())
	}
	others, err := f.Companions()
	if err != nil {
		return err
	}
	for _, o := range others {
		in = append(in, fmt.Sprintf("%s, of the same IOMMU group %s, is in the hands of the driver %s", o.Addr, f.Group, o.Driver))
	}
	if len(in) == 0 {
		return nil
	}
	slices.Sort(in)
	return fmt.Errorf("%s is in use: %s", f.Addr, strings.Join(slices.Compact(in), "; "))
}

func unbind(out io.Writer, arg string) error {
	a, err := pci.ParseAddress(arg)
	if err != nil {
		return err
	}
	f, err := pci.System{}.Function(a)
	if err != nil {
		return err
	}
	if f.Driver != pci.VFIO && f.Driver != "" {
		fmt.Fprintf(out, "%s is not bound to %s: the driver %s has it\n", a, pci.VFIO, f.Driver)
		return nil
	}
	users, err := pcie.Users(f)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return fmt.Errorf("%s is in use: %s", a, users[0])
	}
	defer heldOff()()
	if err := f.Rebind(""); err != nil {
		return fmt.Errorf("giving %s back: %w", a, err)
	}
	if f.Driver == "" {
		fmt.Fprintf(out, "%s is given back; no driver of the kernel's takes it\n", a)
		return nil
	}
	fmt.Fprintf(out, "%s is given back: the driver %s has it\n", a, f.Driver)
	return nil
}
