package mountopt

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Config
	}{
		{"", Config{}},
		{",,", Config{}},
		{"ro", Config{ReadOnly: true}},
		{"ro,rw", Config{}},
		{"rw,ro", Config{ReadOnly: true}},
		{"norecovery,ro", Config{NoRecovery: true, ReadOnly: true}},
		{"noload", Config{NoRecovery: true}},
		{"discard", Config{Discard: true}},
		{"discard,nodiscard", Config{}},
		{"allow_other,default_permissions", Config{AllowOther: true}},
		{"writeback_cache", Config{WriteBack: true}},
		{"minixdf", Config{MinixDF: true}},
		{"minixdf,bsddf", Config{}},
		{"commit=30", Config{Commit: 30 * time.Second}},
		{"commit=0", Config{}},
		{"cache=64M", Config{Cache: 64 << 20}},
		{"cache=1g", Config{Cache: 1 << 30}},
		{"cache=4096", Config{Cache: 4096}},
		{"lanes=4,depth=32,lba=4096,nsid=2", Config{Lanes: 4, Depth: 32, LBA: 4096, NSID: 2}},
		{"lanes=gpu:16+cpu:2", Config{Lanes: 16, CPULanes: 2}},
		{"lanes=gpu:16+cpu:2,lanes=cpu:1", Config{CPULanes: 1}},
		{"lanes=gpu:3+cpu:0", Config{Lanes: 3}},
		{"lane=wave,lane=thread,gpu_error=host,gpu_error=ro", Config{Thread: true, GPUError: "ro"}},
		{"doorbell=bridge", Config{Doorbell: engine.DoorbellBridge}},
		{"doorbell=bridge,doorbell=direct,memory-mode=15", Config{Doorbell: engine.DoorbellDirect, MemoryMode: ptr(controller.MemoryMode(15))}},
		{"memory-mode=0", Config{MemoryMode: new(controller.MemoryMode)}},
		{"memory-mode=3,memory-mode=auto", Config{}},
		{"gpu=cuda:1+0,gpu=hip:0,2,lanes=3", Config{GPU: "hip", GPUs: []string{"0", "2"}, Lanes: 3}},
		{"gpu=cuda:GPU-1a2b,0000:c1:00.0,01,c2:00.1,lanes=3", Config{GPU: "cuda", GPUs: []string{"GPU-1a2b", "0000:c1:00.0", "1", "c2:00.1"}, Lanes: 3}},
		{"gpu=cuda:MIG-1a2b-3c,lanes=3", Config{GPU: "cuda", GPUs: []string{"MIG-1a2b-3c"}, Lanes: 3}},
		{"gpu=host,log=/x/y", Config{GPU: "host", Log: "/x/y"}},
		{"errors=remount-ro", Config{Errors: ext4.ErrorsReadOnly}},
		{"errors=panic,errors=continue", Config{Errors: ext4.ErrorsContinue}},
		{"defaults,noauto,nofail,_netdev,user,x-systemd.automount,x-gvfs-name=a b,comment=x", Config{}},
		{"noatime,nosuid,nodev", Config{Kernel: []string{"noatime", "nosuid", "nodev"}}},
		{"noatime,strictatime", Config{Kernel: []string{"strictatime"}}},
		{"strictatime,noatime", Config{Kernel: []string{"noatime"}}},
		{"strictatime,relatime", Config{Kernel: []string{}}},
		{"strictatime,nostrictatime,norelatime", Config{Kernel: []string{}}},
		{"noatime,atime,nosuid,suid,dirsync,relatime", Config{Kernel: []string{"dirsync"}}},
		{"nodiratime,noatime,diratime,nodiratime", Config{Kernel: []string{"noatime", "nodiratime"}}},
		{"acl,user_xattr,data=ordered,barrier=1,nobarrier,barrier,lazytime,nodelalloc,stripe=128,init_itable,init_itable=10", Config{}},
		{"noexec,noexec", Config{Kernel: []string{"noexec"}}},
	} {
		var got Config
		require.NoError(t, Parse(&got, c.in), c.in)
		require.Equal(t, c.want, got, c.in)
	}
	var got Config
	require.NoError(t, Parse(&got, "ro,lba=512", "rw"), "several -o are one list")
	require.Equal(t, Config{LBA: 512}, got)
}

func ptr[T any](v T) *T { return &v }

func TestParseErrors(t *testing.T) {
	for in, want := range map[string]string{
		"frobnicate":           `unknown option "frobnicate"`,
		"ro,frob=3":            `unknown option "frob=3"`,
		"Ro":                   `unknown option "Ro"`,
		"ro=1":                 `option "ro=1" takes no value`,
		"noatime=1":            `option "noatime=1" takes no value`,
		"lanes":                `option "lanes" needs a value`,
		"lanes=0":              `option "lanes=0": want a number from 1 to 1024`,
		"lanes=1025":           `option "lanes=1025": want a number from 1 to 1024`,
		"lanes=gpu:0+cpu:2":    `option "lanes=gpu:0+cpu:2": want a number from 1 to 1024, or gpu:N+cpu:M`,
		"lanes=gpu:2+gpu:2":    `want a number`,
		"lanes=gpu:1020+cpu:5": `of that sum at most`,
		"lanes=tpu:2":          `want a number`,
		"lanes=cpu:-1":         `want a number`,
		"lanes=cpu":            `want a number`,
		"depth=16384":          `option "depth=16384": want a number from 1 to 16383`,
		"cache=0":              `option "cache=0": want a size such as 256M, 4k or more`,
		"pinned=0":             `option "pinned=0": want a size such as 256M, 1M or more`,
		"vram=":                `option "vram=": want a size such as 256M`,
		"vram=ff:1f.7/6":       `option "vram=ff:1f.7/6": "6" is no BAR`,
		"lane":                 `option "lane" needs a value: lane=wave|thread`,
		"comit=3":              `unknown option "comit=3": did you mean "commit"?`,
		"share_heldd=3":        `unknown option "share_heldd=3": did you mean "share_held"?`,
		"noatiem":              `unknown option "noatiem": did you mean "noatime"?`,
		"frobnicates":          `unknown option "frobnicates": see lanefs mount --help`,
		"lanes=x":              `option "lanes=x": want a number`,
		"lanes=":               `option "lanes=": want a number`,
		"doorbell=cable":       `option "doorbell=cable": want auto, direct, iomem or bridge`,
		"memory-mode=16":       `option "memory-mode=16": want auto or a number from 0 to 15`,
		"memory-mode=vram":     `option "memory-mode=vram": want auto or a number from 0 to 15`,
		"lane=warp":            `option "lane=warp": want thread or wave`,
		"gpu_error=stop":       `option "gpu_error=stop": want host or ro`,
		"lba=513":              `option "lba=513": want 512, 1024, 2048 or 4096`,
		"commit=-1":            `option "commit=-1": want a number from 0 to 300`,
		"cache=":               `option "cache=": want a size such as 256M`,
		"cache=5T":             `option "cache=5T"`,
		"cache=kk":             `option "cache=kk"`,
		"cache=99999999999G":   `option "cache=99999999999G": want a size`,
		"errors=stop":          `option "errors=stop": want remount-ro`,
		"gpu=vulkan":           `option "gpu=vulkan": want auto, host, hip or cuda`,
		"gpu=host:GPU-1":       `want auto, host, hip or cuda`,
		"gpu=cuda:TPU-1":       `want auto, host, hip or cuda`,
		"gpu=cuda:c1:00":       `want auto, host, hip or cuda`,
		"gpu=cuda:GPU-a,gpu-A": `cuda:gpu-A is there twice`,
		"gpu=cuda:0,MIG-a":     `a MIG instance is a mount's only device`,
		"delalloc=1":           `option "delalloc=1" takes no value`,
		"stripe=wide":          `option "stripe=wide": want a number`,
		"nsid=0":               `option "nsid=0"`,
		"x":                    `unknown option "x"`,
	} {
		err := Parse(&Config{}, in)
		require.ErrorContains(t, err, want, in)
		require.NotContains(t, err.Error(), "\n", in)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("ro,lanes=4,noatime,x-a=b")
	f.Add("cache=1k,commit=,=,")
	f.Fuzz(func(t *testing.T, in string) {
		var c Config
		if err := Parse(&c, in); err != nil {
			require.Contains(t, err.Error(), "option")
			return
		}
		require.GreaterOrEqual(t, c.Cache, int64(0))
		require.True(t, c.Lanes >= 0 && c.Lanes <= MaxLanes)
		// What was accepted is accepted again, with the same meaning.
		var twice Config
		require.NoError(t, Parse(&twice, strings.Split(in, ",")...))
		require.Equal(t, c, twice)
	})
}
