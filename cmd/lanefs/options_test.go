package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/nvmeq"
)

func TestParseOptions(t *testing.T) {
	for _, c := range []struct {
		in   string
		want mountConfig
	}{
		{"", mountConfig{}},
		{",,", mountConfig{}},
		{"ro", mountConfig{ReadOnly: true}},
		{"ro,rw", mountConfig{}},
		{"rw,ro", mountConfig{ReadOnly: true}},
		{"norecovery,ro", mountConfig{NoRecovery: true, ReadOnly: true}},
		{"noload", mountConfig{NoRecovery: true}},
		{"discard", mountConfig{Discard: true}},
		{"discard,nodiscard", mountConfig{}},
		{"allow_other,default_permissions", mountConfig{AllowOther: true}},
		{"writeback_cache", mountConfig{WriteBack: true}},
		{"minixdf", mountConfig{MinixDF: true}},
		{"minixdf,bsddf", mountConfig{}},
		{"commit=30", mountConfig{Commit: 30 * time.Second}},
		{"commit=0", mountConfig{}},
		{"cache=64M", mountConfig{Cache: 64 << 20}},
		{"cache=1g", mountConfig{Cache: 1 << 30}},
		{"cache=4096", mountConfig{Cache: 4096}},
		{"lanes=4,depth=32,lba=4096,nsid=2", mountConfig{Lanes: 4, Depth: 32, LBA: 4096, NSID: 2}},
		{"lane=wave,lane=thread,gpu_error=host,gpu_error=ro", mountConfig{Thread: true, GPUError: "ro"}},
		{"doorbell=bridge", mountConfig{Doorbell: nvmeq.DoorbellBridge}},
		{"doorbell=bridge,doorbell=direct,memory-mode=15", mountConfig{Doorbell: nvmeq.DoorbellDirect, MemoryMode: ptr(nvmeq.MemoryMode(15))}},
		{"memory-mode=0", mountConfig{MemoryMode: new(nvmeq.MemoryMode)}},
		{"memory-mode=3,memory-mode=auto", mountConfig{}},
		{"gpu=host,log=/x/y", mountConfig{GPU: "host", Log: "/x/y"}},
		{"errors=remount-ro", mountConfig{Errors: ext4.ErrorsReadOnly}},
		{"errors=panic,errors=continue", mountConfig{Errors: ext4.ErrorsContinue}},
		{"defaults,noauto,nofail,_netdev,user,x-systemd.automount,x-gvfs-name=a b,comment=x", mountConfig{}},
		{"noatime,nosuid,nodev", mountConfig{Kernel: []string{"noatime", "nosuid", "nodev"}}},
		{"noatime,strictatime", mountConfig{Kernel: []string{"strictatime"}}},
		{"strictatime,noatime", mountConfig{Kernel: []string{"noatime"}}},
		{"strictatime,relatime", mountConfig{Kernel: []string{}}},
		{"strictatime,nostrictatime,norelatime", mountConfig{Kernel: []string{}}},
		{"noatime,atime,nosuid,suid,dirsync,relatime", mountConfig{Kernel: []string{"dirsync"}}},
		{"nodiratime,noatime,diratime,nodiratime", mountConfig{Kernel: []string{"noatime", "nodiratime"}}},
		{"acl,user_xattr,data=ordered,barrier=1,nobarrier,barrier,lazytime,nodelalloc,stripe=128,init_itable,init_itable=10", mountConfig{}},
		{"noexec,noexec", mountConfig{Kernel: []string{"noexec"}}},
	} {
		var got mountConfig
		require.NoError(t, parseOptions(&got, []string{c.in}), c.in)
		require.Equal(t, c.want, got, c.in)
	}
	var got mountConfig
	require.NoError(t, parseOptions(&got, []string{"ro,lba=512", "rw"}), "several -o are one list")
	require.Equal(t, mountConfig{LBA: 512}, got)
}

func ptr[T any](v T) *T { return &v }

func TestParseOptionsErrors(t *testing.T) {
	for in, want := range map[string]string{
		"frobnicate":         `unknown option "frobnicate"`,
		"ro,frob=3":          `unknown option "frob=3"`,
		"Ro":                 `unknown option "Ro"`,
		"ro=1":               `option "ro=1" takes no value`,
		"noatime=1":          `option "noatime=1" takes no value`,
		"lanes":              `option "lanes" needs a value`,
		"lanes=0":            `option "lanes=0": want a number from 1 to 1024`,
		"lanes=x":            `option "lanes=x": want a number`,
		"lanes=":             `option "lanes=": want a number`,
		"doorbell=cable":     `option "doorbell=cable": want auto, direct, iomem or bridge`,
		"memory-mode=16":     `option "memory-mode=16": want auto or a number from 0 to 15`,
		"memory-mode=vram":   `option "memory-mode=vram": want auto or a number from 0 to 15`,
		"lane=warp":          `option "lane=warp": want thread or wave`,
		"gpu_error=stop":     `option "gpu_error=stop": want host or ro`,
		"lba=513":            `option "lba=513": want 512, 1024, 2048 or 4096`,
		"commit=-1":          `option "commit=-1": want a number from 0 to 300`,
		"cache=":             `option "cache=": want a size such as 256M`,
		"cache=5T":           `option "cache=5T"`,
		"cache=kk":           `option "cache=kk"`,
		"cache=99999999999G": `option "cache=99999999999G": want a size`,
		"errors=stop":        `option "errors=stop": want remount-ro`,
		"gpu=vulkan":         `option "gpu=vulkan": want auto, host, hip or cuda`,
		"delalloc=1":         `option "delalloc=1" takes no value`,
		"stripe=wide":        `option "stripe=wide": want a number`,
		"nsid=0":             `option "nsid=0"`,
		"x":                  `unknown option "x"`,
	} {
		err := parseOptions(&mountConfig{}, []string{in})
		require.ErrorContains(t, err, want, in)
		require.NotContains(t, err.Error(), "\n", in)
	}
}

func FuzzParseOptions(f *testing.F) {
	f.Add("ro,lanes=4,noatime,x-a=b")
	f.Add("cache=1k,commit=,=,")
	f.Fuzz(func(t *testing.T, in string) {
		var c mountConfig
		if err := parseOptions(&c, []string{in}); err != nil {
			require.Contains(t, err.Error(), "option")
			return
		}
		require.GreaterOrEqual(t, c.Cache, int64(0))
		require.True(t, c.Lanes >= 0 && c.Lanes <= 1024)
		// What was accepted is accepted again, with the same meaning.
		var twice mountConfig
		require.NoError(t, parseOptions(&twice, strings.Split(in, ",")))
		require.Equal(t, c, twice)
	})
}
