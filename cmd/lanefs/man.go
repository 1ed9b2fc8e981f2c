package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/mountopt"
	"github.com/lanefs/lanefs/cmd/lanefs/internal/roff"
)

// The manual pages are made of the commands, their flags, and the table of mount options. docs/man has them as they are installed;
// a test compares.

//go:generate go run . help --man-pages ../../docs/man

const manual = "System Administration"

// manPages are all pages, by the name of their file: lanefs(8), mount.lanefs(8), and one for each command.
func manPages(root *cobra.Command) map[string]string {
	root.InitDefaultHelpCmd() // which is else added when the command line is read
	pages := map[string]string{"lanefs.8": commandPage(root), "mount.lanefs.8": mountPage()}
	leaves(root, func(c *cobra.Command) { pages[pageName(c)+".8"] = onePage(c) })
	return pages
}

// pageName is the name of a command's page: lanefs-vram-pin.
func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// leaves calls f for the commands below c that have no commands of their own.
func leaves(c *cobra.Command, f func(*cobra.Command)) {
	for _, sub := range c.Commands() {
		switch {
		case sub.Hidden || !sub.Runnable():
		case sub.HasSubCommands():
			leaves(sub, f)
		default:
			f(sub)
		}
	}
}

// onePage is the page of a command.
func onePage(c *cobra.Command) string {
	p := roff.New(pageName(c), 8, manual)
	p.Section("NAME")
	p.Paragraph(pageName(c) + " - " + c.Short)
	p.Section("SYNOPSIS")
	p.Example(strings.TrimSuffix(c.UseLine(), " [flags]"))
	p.Section("DESCRIPTION")
	describeCommand(p, c)
	p.Section("EXIT STATUS")
	if c.Name() == "check" {
		p.Paragraph("As described above.")
	} else {
		p.Paragraph("0 if the command did what it says, else 1, and a line on standard error that says why; 2 for wrong arguments.")
	}
	p.Section("SEE ALSO")
	if c.Name() == "mount" {
		p.Paragraph("mount.lanefs(8), which has the options of **-o**, lanefs(8)")
	} else {
		p.Paragraph("lanefs(8), mount.lanefs(8)")
	}
	return p.String()
}

// commandPage is lanefs(8).
func commandPage(root *cobra.Command) string {
	p := roff.New("lanefs", 8, manual)
	p.Section("NAME")
	p.Paragraph("lanefs - ext4 in user space, moved by GPU lanes over NVMe")
	p.Section("SYNOPSIS")
	p.Paragraph("**lanefs** _COMMAND_ [flags] [arguments]")
	p.Section("DESCRIPTION")
	p.Paragraph(`LaneFS mounts an ext4 volume in user space. Kernels on a GPU or on CPU threads own the NVMe queue pairs: they build the commands, ring the
doorbells and poll the completions. The volume is an image file, behind a controller in software, or an NVMe function that is bound to
vfio-pci.`)
	p.Section("COMMANDS")
	commands(p, root)
	p.Section("EXIT STATUS")
	p.Paragraph("0 if the command did what it says, else 1, and a line on standard error that says why; 2 if it did not understand its arguments. **lanefs check** has the statuses of fsck(8), see there.")
	files(p)
	p.Section("ENVIRONMENT")
	p.Item("GOMAXPROCS", "How many threads of the daemon run Go code at once. Without it the daemon takes one for each CPU, and more for threads that wait for the kernel's requests: on /dev/fuse always, with io_uring while more requests than CPUs are under way at once.")
	p.Item("XDG_RUNTIME_DIR", "The directory in which a user other than root has the runtime directory of mounts.")
	p.Section("SEE ALSO")
	p.Paragraph("mount.lanefs(8), mount(8), fstab(5), mkfs.ext4(8), e2fsck(8), fuse(4)")
	return p.String()
}

// commands describes the commands below c that have no commands of their own.
func commands(p *roff.Page, c *cobra.Command) {
	leaves(c, func(c *cobra.Command) {
		p.Subsection(strings.TrimSuffix(c.UseLine(), " [flags]"))
		describeCommand(p, c)
	})
}

// describeCommand says what a command does and what its flags mean.
func describeCommand(p *roff.Page, c *cobra.Command) {
	text := c.Long
	if text == "" {
		text = strings.ToUpper(c.Short[:1]) + c.Short[1:] + "."
	}
	for _, paragraph := range strings.Split(text, "\n\n") {
		p.Paragraph(paragraph)
	}
	c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		term := "--" + f.Name
		if f.Shorthand != "" {
			term = "-" + f.Shorthand + ", " + term
		}
		if value != "" {
			term += " " + value
		}
		switch f.DefValue {
		case "", "false", "[]", "-1":
		default:
			usage += fmt.Sprintf(" (default %s)", f.DefValue)
		}
		p.Item(term, usage+".")
	})
}

// mountPage is mount.lanefs(8).
func mountPage() string {
	p := roff.New("mount.lanefs", 8, manual)
	p.Section("NAME")
	p.Paragraph("mount.lanefs - mount an ext4 volume with LaneFS")
	p.Section("SYNOPSIS")
	p.Example("mount -t lanefs [-o OPTIONS] DEVICE DIR", "mount.lanefs DEVICE DIR [-fnsv] [-o OPTIONS]", "lanefs mount [flags] [-o OPTIONS] DEVICE DIR")
	p.Section("DESCRIPTION")
	p.Paragraph(`mount(8) runs this helper for the type lanefs, as **mount.fuse.lanefs** also for fuse.lanefs. It does what **lanefs mount** does: it mounts the
ext4 volume on _DEVICE_, an image file or the PCI address of an NVMe function, at _DIR_, and returns once the mount answers. A process
of its own serves the mount. What was not asked for and holds all the same, a volume that can only be read for one, is said on standard
error.`)
	p.Paragraph(`**lanefs umount** ends the mount, and returns when everything is on the medium. umount(8) does the same by the helper
**umount.fuse.lanefs**. For root's umount of an absolute path, for which umount(8) asks statfs(2) for the type and gets that of all of FUSE, the
mount has an entry in libmount's table _/run/mount/utab_, with the option **x-lanefs.wait**: then the helper is found. Without the helper, with
**umount -i**, or where that table cannot be written, umount(8) returns before the device is closed; the next mount of the device waits for that.`)
	p.Paragraph(`sync(2) and syncfs(2), so also sync(1) without a file and with **-f**, do not reach a FUSE server: what was written is on the medium within
**commit=** seconds, or after an fsync(2) of any file just changed (**sync** _FILE_).`)
	p.Paragraph(`mkfs.ext4 makes a volume whose root directory is root's. An ordinary user who mounts it cannot write there: **mkfs.ext4 -E root_owner=UID:GID** makes one that is that user's.`)
	p.Paragraph(`With **-f** the arguments are checked, and nothing is mounted. With **-s** options that are not known are left out. **-n** and **-v** change nothing.
**-o remount** changes **ro**, **rw**, **nosuid**, **nodev** and **noexec** of a mount, by root; other options need an unmount.`)
	p.Section("OPTIONS")
	p.Paragraph(`Options of **-o** are separated by commas. Of options that exclude one another the last counts. A _SIZE_ is a number of bytes, or has k, M or G behind
it for powers of 1024. An option that is not listed here is refused.`)
	mountopt.Man(p)
	p.Section("EXIT STATUS")
	p.Paragraph("As with mount(8): 0 if the volume is mounted, 1 for wrong arguments or options, 32 if the mount failed, and a line on standard error that says why. **lanefs mount** ends with 1 for a mount that failed, with 2 for wrong arguments.")
	files(p)
	p.Section("EXAMPLES")
	p.Example("mount -t lanefs -o noatime,lanes=4 disk.img /mnt")
	p.Paragraph("A line of /etc/fstab:")
	p.Example("/srv/disk.img  /mnt  lanefs  noauto,nofail,noatime  0  0")
	p.Section("SEE ALSO")
	p.Paragraph("lanefs(8), mount(8), fstab(5), ext4(5)")
	return p.String()
}

// files describes the runtime directory.
func files(p *roff.Page) {
	p.Section("FILES")
	p.Item("/run/lanefs", "Root's runtime directory: for each mount a lock, the control socket, and the log. Other users' is $XDG_RUNTIME_DIR/lanefs, or else /tmp/lanefs-UID.")
}
