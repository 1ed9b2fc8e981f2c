package mountopt

import (
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/roff"
)

// example is an option with a value that it takes.
func example(o *Option) string {
	switch {
	case o.Kind == Choice:
		return o.Name + "=" + o.Values[len(o.Values)-1]
	case o.Kind == Number:
		return o.Name + "=1"
	case o.Kind == Size:
		return o.Name + "=64M"
	case o.Name == "gpu":
		return "gpu=hip:1,0"
	case o.Name == "lanes":
		return "lanes=gpu:1+cpu:1"
	case o.Name == "vram":
		return "vram=1M"
	case o.Kind == Text:
		return o.Name + "=/a"
	case o.Kind == Prefix:
		return o.Name + "anything=else"
	}
	return o.Name
}

// TestTable: every option is complete, parsed, in the help and in the manual page.
func TestTable(t *testing.T) {
	help := Help()
	var page roff.Page
	Man(&page)
	man := strings.ReplaceAll(page.String(), `\-`, "-")
	seen := map[string]bool{}
	for _, o := range All() {
		t.Run(o.Name, func(t *testing.T) {
			require.False(t, seen[o.Name], "twice")
			seen[o.Name] = true
			require.Same(t, o, Find(o.Name))
			require.Contains(t, help, o.Syntax())
			require.Contains(t, man, strings.ReplaceAll(o.Syntax(), "…", "..."))
			var c Config
			require.NoError(t, Parse(&c, example(o)))
			switch {
			case o.Ignored():
				require.Equal(t, Config{}, c)
				return
			case o.Layer == Kernel && !o.holds:
				require.Equal(t, []string{o.Name}, c.Kernel)
			case o.Layer != Kernel:
				require.NotNil(t, o.set)
			}
			require.NotEmpty(t, o.Help)
			for _, u := range o.undoes {
				require.Equal(t, Kernel, Find(u).Layer)
			}
			for _, v := range o.Values {
				require.NoError(t, Parse(&c, o.Name+"="+v))
			}
			if o.Kind == Number || o.Kind == Size {
				require.Error(t, Parse(&c, o.Name+"="+shortSize(o.Low-1)))
			}
		})
	}
}

// TestTags: each field of Config is set by the option that its tag names.
func TestTags(t *testing.T) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		tag := f.Tag.Get("opt")
		switch f.Name {
		case "Kernel":
			continue
		case "Share":
			tag = "share_rings"
		}
		require.NotNil(t, Find(tag), f.Name)
		item := example(Find(tag))
		switch f.Name {
		case "VRAM":
			item = "vram=ff:1f.7"
		case "Errors":
			item = "errors=continue"
		}
		var c Config
		require.NoError(t, Parse(&c, item))
		require.False(t, reflect.ValueOf(c).FieldByIndex(f.Index).IsZero(), "%s sets no %s", item, f.Name)
	}
}

func TestDiffers(t *testing.T) {
	parse := func(list string) *Config {
		c := Default()
		require.NoError(t, Parse(&c, list))
		return &c
	}
	perMount := func(o string) bool { return o == "nosuid" }
	first := parse("lanes=4,noatime,vram=8M,share_rings=3,log=/a")
	require.Empty(t, parse("").Differs(first, perMount))
	require.Empty(t, parse("lanes=4,noatime,nosuid,log=/b,vram=8M").Differs(first, perMount))
	require.Equal(t, []string{"lanes", "memory-mode", "share_…", "vram", "dirsync"},
		parse("lanes=5,dirsync,memory-mode=0,share_rings=4,vram=9M").Differs(first, perMount))
}

func TestCheck(t *testing.T) {
	for list, want := range map[string]string{"norecovery": `"norecovery" needs "ro"`, "strictatime,writeback_cache": "exclude one another"} {
		var c Config
		require.NoError(t, Parse(&c, list))
		require.ErrorContains(t, c.Check(), want)
	}
	var c Config
	require.NoError(t, Parse(&c, "norecovery,ro,writeback_cache"))
	require.NoError(t, c.Check())
}

func TestFlags(t *testing.T) {
	var list []string
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	AddFlags(f, &list, "gpu", "memory-mode", "vram")
	require.NoError(t, f.Parse([]string{"--gpu", "host", "--vram=ff:1f.7/1", "--memory-mode", "9"}))
	require.Equal(t, []string{"gpu=host", "vram=ff:1f.7/1", "memory-mode=9"}, list)
	require.ErrorContains(t, f.Parse([]string{"--gpu", "vulkan"}), "want auto, host, hip or cuda")
	require.ErrorContains(t, f.Parse([]string{"--vram", "ff:1f.7/6"}), "is no BAR")
}

func TestParseBAR(t *testing.T) {
	for in, want := range map[string]BAR{"ff:1f.7": {"0000:ff:1f.7", 2}, "0000:ff:1f.7/0": {"0000:ff:1f.7", 0}} {
		got, err := ParseBAR(in)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, in := range []string{"", "/", "ff:1f.7/", "ff:1f.7/6", "ff:1f.7/-1", "ff:1f.8"} {
		_, err := ParseBAR(in)
		require.Error(t, err, in)
	}
}
