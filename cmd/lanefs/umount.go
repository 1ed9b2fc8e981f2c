package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/lanefs/lanefs/fs"
)

// umountTimeout bounds how long everything that is still in memory may take to reach the medium.
const umountTimeout = 15 * time.Minute

func umountCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "umount DIR",
		Short: "unmount, and return when everything is on the medium",
		Long: `Unmounts DIR. The command returns 0 only when everything is on the medium and the device is closed. A mount whose daemon was
killed is cleared away.`,
		Args: exactly("DIR"),
		RunE: func(_ *cobra.Command, args []string) error { return umount(args[0]) },
	}
}

func umount(arg string) error {
	m, err := ourMount(arg)
	if err != nil {
		return err
	}
	_, err = ask(m, request{Op: "umount"}, umountTimeout)
	if !errors.Is(err, errNoDaemon) {
		return err
	}
	if !dead(m.Dir) {
		return fmt.Errorf("%q is mounted, but %w: unmount it with fusermount3 -u", m.Dir, errNoDaemon)
	}
	if err := fs.Detach(m.Dir); err != nil {
		return fmt.Errorf("%q: its daemon is dead, and the mount it left cannot be cleared: %w", m.Dir, err)
	}
	if files, err := claim(m.Dir); err == nil {
		files.release(true) // its log may say why it died
	}
	fmt.Fprintf(os.Stderr, "lanefs: %q: its daemon was dead; the mount it left is cleared\n", m.Dir)
	return nil
}

// ourMount is the LaneFS mount at a directory.
func ourMount(arg string) (*mountEntry, error) {
	dir, err := resolveDir(arg)
	if err != nil {
		return nil, err
	}
	m, err := findMount(dir)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, fmt.Errorf("%q is not a mount point", arg)
	}
	if !m.LaneFS() {
		return nil, fmt.Errorf("%q is not a LaneFS mount: %s of type %s is mounted there", arg, m.Source, m.Type)
	}
	return m, nil
}

// controlSockets are where the daemon of m may listen: in our own runtime directory, or in that of who mounted it.
func controlSockets(m *mountEntry) []string {
	dirs := runDirs(os.Geteuid())
	if m.UID >= 0 && m.UID != os.Geteuid() {
		dirs = append(dirs, runDirs(m.UID)...)
	}
	for i, d := range dirs {
		dirs[i] = filepath.Join(d, runName(m.Dir)+".sock")
	}
	return dirs
}
