package kernels

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// goName is the Go field for a C field: sq_doorbell is SqDoorbell.
func goName(c string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(c, "_") {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

// The host image exports every field of layout.h with its offset and size. Each must be in layout.go, and nothing else.
func TestLayout(t *testing.T) {
	mirror := map[string]reflect.Type{
		"work": reflect.TypeFor[Work](), "result": reflect.TypeFor[Result](), "cid": reflect.TypeFor[CID](),
		"control": reflect.TypeFor[Control](), "status": reflect.TypeFor[Status](),
		"counters": reflect.TypeFor[Counters](), "trace": reflect.TypeFor[Trace](), "lane": reflect.TypeFor[Lane](),
	}
	sizes := map[string]uintptr{"work": WorkSize, "result": ResultSize, "cid": CIDSize, "control": ControlSize,
		"status": StatusSize, "counters": CountersSize, "trace": TraceSize, "lane": LaneSize}

	seen := map[string]int{}
	for _, f := range layoutTable(t, imageOf(t, "x86_64")) {
		typ, ok := mirror[f.owner]
		require.True(t, ok, "layout.h has a struct %q that layout.go lacks", f.owner)
		if f.field == "" {
			require.Equal(t, uintptr(f.size), typ.Size(), "size of %s", f.owner)
			require.Equal(t, uintptr(f.size), sizes[f.owner], "size constant of %s", f.owner)
			continue
		}
		field, ok := typ.FieldByName(goName(f.field))
		require.True(t, ok, "%s lacks the field %s", typ, f.field)
		require.Equal(t, uintptr(f.offset), field.Offset, "offset of %s.%s", f.owner, f.field)
		require.Equal(t, uintptr(f.size), field.Type.Size(), "size of %s.%s", f.owner, f.field)
		seen[f.owner]++
	}
	for name, typ := range mirror {
		require.Equal(t, typ.NumField()-1, seen[name], "number of fields of %s", typ) // all but structs.HostLayout
	}
}

type tableField struct {
	owner, field string
	offset, size uint32
}

// layoutTable reads lanefs_layout (layout_table.h) out of an image.
func layoutTable(t *testing.T, image []byte) []tableField {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(image))
	require.NoError(t, err)
	symbols, err := f.DynamicSymbols()
	require.NoError(t, err)
	for _, s := range symbols {
		if s.Name != "lanefs_layout" {
			continue
		}
		data, err := f.Sections[s.Section].Data()
		require.NoError(t, err)
		data = data[s.Value-f.Sections[s.Section].Addr:][:s.Size]
		var fields []tableField
		for ; data[0] != 0; data = data[40:] {
			fields = append(fields, tableField{
				owner:  string(bytes.TrimRight(data[:16], "\x00")),
				field:  string(bytes.TrimRight(data[16:32], "\x00")),
				offset: binary.LittleEndian.Uint32(data[32:]),
				size:   binary.LittleEndian.Uint32(data[36:]),
			})
		}
		return fields
	}
	t.Fatal("the host image does not export lanefs_layout")
	return nil
}

func TestPRPStride(t *testing.T) {
	for _, c := range []struct {
		n, page int64
		want    uint32
	}{
		{0, 4096, 64}, {4096, 4096, 64}, {32768, 4096, 64}, {36864, 4096, 128}, {1 << 20, 4096, 2048},
		{2 << 20, 4096, 4096}, {2<<20 + 4096, 4096, 8192}, {4 << 20, 4096, 3 * 4096}, {2 << 20, 16384, 1024},
	} {
		require.Equal(t, c.want, PRPStride(c.n, c.page), "%d bytes with pages of %d", c.n, c.page)
	}
}
