package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// TestSchemas: docs/JSON.md describes every field that a command prints with --json, and no other, or says which table of docs/SPEC.md
// does; and each command that has the flag has a schema.
func TestSchemas(t *testing.T) {
	text, err := os.ReadFile("../../docs/JSON.md")
	require.NoError(t, err)
	sections := regexp.MustCompile("(?m)^## `lanefs (.+) --json`: `(.+)`$").FindAllStringSubmatchIndex(string(text), -1)
	described := map[string]bool{}
	for i, m := range sections {
		end := len(text)
		if i+1 < len(sections) {
			end = sections[i+1][0]
		}
		command, named, body := string(text[m[2]:m[3]]), string(text[m[4]:m[5]]), string(text[m[1]:end])
		s, ok := schemas[command]
		require.True(t, ok, command)
		require.Equal(t, fmt.Sprintf("%s/%d", s.name, s.number), named)
		described[command] = true
		if strings.Contains(body, "field of `") && strings.Contains(body, "(SPEC.md)") {
			continue // TestSpecControlSocket holds that
		}
		var fields []string
		for _, row := range regexp.MustCompile(`(?m)^\| (.*?) \|`).FindAllStringSubmatch(body, -1) {
			for _, f := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
				fields = append(fields, f[1])
			}
		}
		require.ElementsMatch(t, append(jsonPaths(s.of, ""), "schema"), fields, command)
	}
	require.Len(t, described, len(schemas))
	leaves(rootCommand(), func(c *cobra.Command) {
		if c.Flags().Lookup("json") != nil {
			require.Contains(t, schemas, commandName(c))
		}
	})
}

// TestJSONHasSchema: what commands print begins with their schema.
func TestJSONHasSchema(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	p.ok("mount", img, mnt)
	got := map[string]string{"doctor": p.ok("doctor", "--json"), "stat": p.ok("stat", "--json", mnt), "check": p.ok("check", "--json", mnt), "vram ls": p.ok("vram", "ls", "--json", mnt)}
	p.umount(mnt)
	got["bench"] = p.ok("bench", "--json", "--count", "1", img)
	got["prove"] = p.ok("prove", "--json", "--gpu", "host", "--time", "1ms", "--report", "none", img)
	got["identify"] = p.ok("identify", "--json", img)
	require.Len(t, got, len(schemas))
	for command, out := range got {
		s := schemas[command]
		require.True(t, strings.HasPrefix(out, fmt.Sprintf("{\n  \"schema\": \"%s/%d\",\n  \"", s.name, s.number)), out)
		require.NoError(t, json.Unmarshal([]byte(out), new(map[string]any)))
	}
}
