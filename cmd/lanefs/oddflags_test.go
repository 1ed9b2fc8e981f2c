package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOddFlags: what is wrong about a command line is named, in one line, and is a usage error; nothing is tried.
func TestOddFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string // empty: what fails is not the arguments
	}{
		{[]string{"--", "stat", "/mnt"}, `the command "stat" is behind "--"`},
		{[]string{"vram", "--", "pin", "/mnt"}, `the command "pin" is behind "--"`},
		{[]string{"-x"}, "unknown shorthand flag: 'x' in -x; lanefs help lists the flags"},
		{[]string{"stat", "--frob", "/mnt"}, "unknown flag: --frob; lanefs help stat lists the flags"},
		{[]string{"stat", "--"}, "stat: want DIR"},
		{[]string{"stat", "--", "--json", "/mnt"}, `stat: want DIR, got ["--json" "/mnt"]`},
		{[]string{"mount", "--gpu=cuda:0", "--gpu", "host", "/none", "/mnt"}, ""}, // the last counts, as an alias or a script expects
		{[]string{"mount", "-o"}, "flag needs an argument: 'o' in -o; lanefs help mount lists the flags"},
		{[]string{"mount", "-o", "ro,=5", "/none", "/mnt"}, `unknown option "=5"`},
		{[]string{"mount", "-o", "vram=", "/none", "/mnt"}, `option "vram=": want a size`},
		{[]string{"mount", "-o", "", "-o", ",", "-o", "ro", "-o", "nosuid", "/none", "/mnt"}, ""}, // as mount(8) has it
		{[]string{"version", "more"}, `version takes no arguments, got ["more"]`},
		{[]string{"completion", "ksh"}, `unknown command "ksh": did you mean "zsh"? (lanefs help completion lists all)`},
		{[]string{"help", "frob"}, `help: unknown command "frob"`},
		{[]string{"run", "--trace", "--"}, "run: want PROGRAM"},
	} {
		root := rootCommand()
		root.SetArgs(c.args)
		root.SetOut(io.Discard)
		command, err := root.ExecuteC()
		require.Error(t, err, "%q", c.args)
		said := errorText(err)
		require.NotContains(t, said, "\n")
		require.Equal(t, c.want != "", status("lanefs", command, err) == exitUsage, "%q: %s", c.args, said)
		require.Contains(t, said, c.want)
	}
}

// TestHelperFlagsTogether: what mount(8) gives apart a person may give together.
func TestHelperFlagsTogether(t *testing.T) {
	for given, want := range map[string]string{
		"DEVICE DIR -sfnv -o ro":      "DEVICE DIR --sloppy --fake -o ro",
		"-fv DEVICE DIR":              "--fake DEVICE DIR",
		"DEVICE DIR -o -sf -n":        "DEVICE DIR -o -sf", // the value of -o, whatever it is
		"DEVICE DIR -v -t lanefs -sx": "DEVICE DIR -sx",    // unknown: told later
	} {
		out, err := helperFlags(strings.Fields(given))
		require.NoError(t, err)
		require.Equal(t, want, strings.Join(out, " "), given)
	}
}

// TestRoadsDirectory: the file that counts bytes is in the first directory in which it can be, by a name that holds wherever the program goes; if there is none, each is named.
func TestRoadsDirectory(t *testing.T) {
	none, file, good := filepath.Join(t.TempDir(), "none"), filepath.Join(t.TempDir(), "file"), t.TempDir()
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	r, err := newRoads(none, file, "/proc", good, t.TempDir())
	require.NoError(t, err)
	require.Equal(t, good, filepath.Dir(r.path))
	r.close()
	t.Chdir(good)
	require.NoError(t, os.Mkdir("here", 0o700))
	r, err = newRoads("here")
	require.NoError(t, err)
	require.Equal(t, filepath.Join(good, "here"), filepath.Dir(r.path))
	r.close()
	_, err = newRoads(none, file, none)
	for _, text := range []string{none, file, "TMPDIR"} {
		require.ErrorContains(t, err, text)
	}
	require.Equal(t, 1, strings.Count(err.Error(), none))
}
