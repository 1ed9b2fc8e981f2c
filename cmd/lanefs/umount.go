package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/moby/sys/mountinfo"
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
	ended := make(chan struct{})
	go nameHolders(m, os.Stderr, ended)
	_, err = ask(m, request{Op: "umount"}, umountTimeout, nil)
	close(ended)
	if !errors.Is(err, errNoDaemon) {
		return err
	}
	if !fs.Dead(m.Mountpoint) {
		return fmt.Errorf("%q is mounted, but %w: unmount it with fusermount3 -u", m.Mountpoint, errNoDaemon)
	}
	if err := fs.Detach(m.Mountpoint); err != nil {
		return fmt.Errorf("%q: its daemon is dead, and the mount it left cannot be cleared: %w", m.Mountpoint, err)
	}
	if files, err := claim(m.Mountpoint); err == nil {
		files.release(true) // its log may say why it died
	}
	fmt.Fprintf(os.Stderr, "lanefs: %q: its daemon was dead; the mount it left is cleared\n", m.Mountpoint)
	return nil
}

// controlSockets are where the daemon of m may listen: in our own runtime directory, or in that of who mounted it.
func controlSockets(m *mountinfo.Info) []string {
	dirs := runDirs(os.Geteuid())
	if uid := mounter(m); uid >= 0 && uid != os.Geteuid() {
		dirs = append(dirs, runDirs(uid)...)
	}
	for i, d := range dirs {
		dirs[i] = filepath.Join(d, runName(m.Mountpoint)+".sock")
	}
	return dirs
}
