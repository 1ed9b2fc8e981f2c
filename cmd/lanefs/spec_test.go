package main

import (
	"encoding"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSpecControlSocket: docs/SPEC.md describes each request that the daemon answers, and each field of the replies, and no other.
func TestSpecControlSocket(t *testing.T) {
	text, err := os.ReadFile("../../docs/SPEC.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## The control socket\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")

	var requests, fields []string
	for _, m := range regexp.MustCompile("(?m)^\\| `\\{\"op\":\"(\\w+)\"\\}`[ ,]").FindAllStringSubmatch(section, -1) {
		requests = append(requests, m[1])
	}
	for _, table := range strings.Split(section, "\n| field")[1:] {
		rows := strings.Split(table, "\n")
		prefix := ""
		if m := regexp.MustCompile("^ of `(\\w+)` ").FindStringSubmatch(rows[0]); m != nil {
			prefix = m[1] + "."
		}
		for _, row := range rows[2:] {
			if !strings.HasPrefix(row, "|") {
				break
			}
			names, _, _ := strings.Cut(row[1:], "|")
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(names, -1) {
				fields = append(fields, prefix+m[1])
			}
		}
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(operations)), requests)
	want := slices.DeleteFunc(jsonPaths(reflect.TypeFor[response](), ""), func(p string) bool { return strings.HasPrefix(p, "config.") })
	require.ElementsMatch(t, want, fields)
	for _, field := range jsonPaths(reflect.TypeFor[request](), "") {
		require.Contains(t, section, `"`+field+`":`)
	}
}

// jsonPaths are the names of a type's fields in JSON, "queues[].qid": of structs all, of their fields too.
func jsonPaths(t reflect.Type, prefix string) (paths []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		if t.Kind() == reflect.Slice {
			prefix += "[]"
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
		return nil
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			paths = append(paths, jsonPaths(f.Type, prefix)...)
			continue
		}
		if !f.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		if prefix != "" {
			name = prefix + "." + name
		}
		paths = append(paths, name)
		paths = append(paths, jsonPaths(f.Type, name)...)
	}
	return paths
}
