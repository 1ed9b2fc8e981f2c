package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
	"github.com/lanefs/lanefs/fs"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

func vramCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "vram",
		Short: "list, pin and unpin files in device memory",
		Args:  subcommand,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(vramListCommand(), vramPinCommand("pin", "read files into device memory and keep them there", true),
		vramPinCommand("unpin", "let pinned files be evicted again", false))
	return c
}

func vramListCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "ls [--json] DIR",
		Short: "print what is resident for the mount at DIR",
		Args:  exactly("DIR"),
		RunE: func(c *cobra.Command, args []string) error {
			m, err := ourMount(args[0])
			if err != nil {
				return err
			}
			r, err := query(m, request{Op: "vram"}, requestTimeout, nil)
			if err != nil {
				return fmt.Errorf("%q: %w", args[0], err)
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), "vram ls", r.VRAM)
			}
			return printResidents(c, r.VRAM)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func printResidents(c *cobra.Command, s *vramReport) error {
	out := c.OutOrStdout()
	fmt.Fprintf(out, "%s of %s in use; %d ranges were read (%s), %d requests found theirs, %d were evicted\n",
		units.Bytes(s.Used), units.Bytes(s.Size), s.Loads, units.Bytes(s.Loaded), s.Shared, s.Evicted)
	for _, p := range s.Pools {
		fmt.Fprintf(out, "%s %s: %s of %s in use; %d ranges were read (%s)\n", p.GPU, p.Name, units.Bytes(p.Used), units.Bytes(p.Size), p.Loads, units.Bytes(p.Loaded))
	}
	if s.Unreached != "" {
		fmt.Fprintf(out, "the drive does not reach the GPU's memory; %s went through a stage and the copy engine. Why: %s\n", units.Bytes(s.Staged), s.Unreached)
	}
	if r := s.Rings; r.Device.Requests+r.Stage.Requests+r.Copied.Requests > 0 {
		fmt.Fprintf(out, "rings moved %s by %d requests straight to memory of programs or from it, %s by %d through stages, %s by %d through the daemon's stage\n",
			units.Bytes(r.Device.Bytes), r.Device.Requests, units.Bytes(r.Stage.Bytes), r.Stage.Requests, units.Bytes(r.Copied.Bytes), r.Copied.Requests)
	}
	if len(s.Residents) > 0 {
		if err := printRanges(out, s); err != nil {
			return err
		}
	}
	if len(s.Users) > 0 {
		return printUsers(out, s)
	}
	return nil
}

// printUsers prints what each user has, and below it the limits of a user who is neither root nor the mount's.
func printUsers(out io.Writer, s *vramReport) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nuser\tconnections\tdescriptors\trings\thandles\tregistered\tshared\theld\trefused\tunlogged")
	for _, u := range s.Users {
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%d\t%d\n", u.UID, u.Connections, u.Descriptors, u.Rings, u.Handles,
			units.Bytes(u.Registered), units.Bytes(u.Shared), units.Bytes(u.Held), u.Refused, u.Unlogged)
	}
	l := s.Limits
	fmt.Fprintf(w, "limit\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t\t\n", l.Connections, l.Descriptors, l.Rings, l.Handles,
		units.Bytes(l.Registered), units.Bytes(l.Shared), units.Bytes(l.Held))
	return w.Flush()
}

func printRanges(out io.Writer, s *vramReport) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "inode\toffset\tbytes\tmemory\tgeneration\tholders\tstate\tname")
	for _, r := range s.Residents {
		state := "current"
		if r.Latest != r.Generation {
			state = fmt.Sprintf("stale: %d", r.Latest)
		}
		if r.Pinned {
			state += ", pinned"
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%d\t%s\t%q\n", r.Ino, r.Off, r.Bytes, r.Memory, r.Generation, r.Holders, state, r.Name)
	}
	return w.Flush()
}

func vramPinCommand(name, short string, on bool) *cobra.Command {
	owner := int64(-1)
	c := &cobra.Command{
		Use:   name + " [--user UID] FILE…",
		Short: short,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("%s: want FILE…", c.Name())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			var errs []error
			for _, path := range args {
				n, err := pinFile(path, on, owner, c.ErrOrStderr())
				switch {
				case err != nil:
					if named := fmt.Sprintf("%q: ", path); !strings.HasPrefix(err.Error(), named) {
						err = fmt.Errorf("%s%w", named, err)
					}
					errs = append(errs, err)
				case on:
					fmt.Fprintf(c.OutOrStdout(), "%s: %s resident and pinned\n", shown(path), units.Bytes(n))
				default:
					fmt.Fprintf(c.OutOrStdout(), "%s: not pinned\n", shown(path))
				}
			}
			return errors.Join(errs...)
		},
	}
	c.Flags().Int64Var(&owner, "user", -1, "where device memory is shared by programs of one user only: `UID` of that user (default: the caller's)")
	return c
}

func pinFile(path string, on bool, owner int64, out io.Writer) (n int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, reason(err)
	}
	defer f.Close()
	s, err := lanefs.Connect(f)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	if on {
		defer watchPin(f, out)()
	}
	for i := range s.Facts().GPUs { // in the memory of each
		if i > 0 {
			err = s.Use(strconv.Itoa(i))
		}
		if err == nil {
			n, err = s.Pin(f, on, owner)
		}
		if err != nil {
			return 0, err
		}
	}
	return n, nil
}

// watchPin shows how much of a file is in device memory until the function that it returns is called. It asks the daemon, as vram ls does.
func watchPin(f *os.File, out io.Writer) (end func()) {
	ended, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		var st unix.Stat_t
		if unix.Fstat(int(f.Fd()), &st) != nil {
			return
		}
		mounts, err := fs.MountsOf(st.Dev)
		if err != nil || len(mounts) == 0 {
			return
		}
		bar := &progressBar{out: out, say: func(p progress) string {
			return fmt.Sprintf("%s: %s of %s are in device memory", f.Name(), units.Bytes(int64(p.Done)), units.Bytes(int64(p.Total)))
		}}
		defer bar.clear()
		t := time.NewTicker(tellInterval)
		defer t.Stop()
		for {
			select {
			case <-ended:
				return
			case <-t.C:
			}
			r, err := query(mounts[0], request{Op: "vram"}, requestTimeout, nil)
			if err != nil {
				return
			}
			for _, of := range r.VRAM.Residents {
				if uint64(of.Ino) == st.Ino && of.Off == 0 && of.Bytes == st.Size {
					bar.show(progress{Done: uint64(of.Read), Total: uint64(of.Bytes)})
				}
			}
		}
	}()
	return func() { close(ended); <-over }
}
