package main

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFullOutput: a command whose output cannot be written has failed, and says why; with the status that it has anyway where that is an error.
func TestFullOutput(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	other := p.image("other", 32)
	p.ok("mount", img, mnt)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	for _, c := range []struct {
		status int
		args   []string
	}{
		{exitFailed, []string{"version"}}, {exitFailed, []string{"--version"}}, {exitFailed, []string{"help"}}, {exitFailed, []string{"help", "mount"}}, {exitFailed, []string{"mount", "--help"}},
		{exitFailed, []string{"help", "--man", "mount"}}, {exitFailed, []string{"completion", "bash"}}, {exitFailed, []string{"doctor"}}, {exitFailed, []string{"doctor", "--json"}},
		{exitFailed, []string{"stat", mnt}}, {exitFailed, []string{"stat", "--json", mnt}}, {exitFailed, []string{"top", "--count", "1", mnt}}, {exitFailed, []string{"identify", "--gpu", "host", other}},
		{fsckOperational, []string{"check", mnt}}, {fsckOperational, []string{"check", "--json", mnt}},
	} {
		cmd := exec.Command(p.bin, c.args...)
		var errs bytes.Buffer
		cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = p.env, p.dir, full, &errs
		err := cmd.Run()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "%q", c.args)
		require.Equal(t, c.status, exit.ExitCode(), "%q: %s", c.args, &errs)
		require.Contains(t, errs.String(), "no space left on device", "%q", c.args)
	}
	p.ok("umount", mnt)
}
