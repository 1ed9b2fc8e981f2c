package main

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/bench"
	"github.com/lanefs/lanefs/cmd/lanefs/internal/doctor"
)

// What commands print with --json has a schema, which docs/JSON.md describes: its name and number are the first field. The number grows
// when a field goes, changes its type or what it means, so that a program which knows it can trust what it finds. New fields come without.

// schema is the form of what a command prints.
type schema struct {
	name   string // of the schema: "lanefs-stat"
	number int
	of     reflect.Type
}

// schemas are those of the commands that have --json, by their names behind lanefs. A test holds docs/JSON.md against it.
var schemas = map[string]schema{
	"stat":     {"lanefs-stat", 1, reflect.TypeFor[report]()},
	"check":    {"lanefs-check", 1, reflect.TypeFor[checkReport]()},
	"vram ls":  {"lanefs-vram", 1, reflect.TypeFor[vramReport]()},
	"identify": {"lanefs-identify", 1, reflect.TypeFor[identity]()},
	"bench":    {"lanefs-bench", 1, reflect.TypeFor[bench.Report]()},
	"prove":    {"lanefs-prove", 1, reflect.TypeFor[proofReport]()},
	"doctor":   {"lanefs-doctor", 1, reflect.TypeFor[doctor.Report]()},
}

// printJSON prints v, what the command prints with --json, with its schema.
func printJSON(out io.Writer, command string, v any) error {
	s, ok := schemas[command]
	if t := reflect.Indirect(reflect.ValueOf(v)).Type(); !ok || t != s.of {
		return fmt.Errorf("%s --json has no schema for %v", command, t)
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "{\n  \"schema\": \"%s/%d\",%s\n", s.name, s.number, b[1:]) // b begins with a brace, and none of the types is empty
	return err
}
