package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// TestNamesByID: the names are those that Linux 6.18 (wwid) and systemd 252 (60-persistent-storage.rules) give a namespace.
func TestNamesByID(t *testing.T) {
	id := &nvme.IdentifyController{VID: 0x144d, MN: "Samsung SSD/980 PRO 1TB ", SN: "S5GXNX0T1 "}
	ns := &controller.Namespace{ID: 2, Identify: &nvme.IdentifyNamespace{}}
	last := func() string { all := namesByID(id, ns); return all[len(all)-1] }
	require.Equal(t, []string{"nvme-Samsung_SSD_980_PRO_1TB_S5GXNX0T1", "nvme-Samsung_SSD_980_PRO_1TB_S5GXNX0T1_2",
		"nvme-nvme.144d-533547584e58305431-53616d73756e67205353442f3938302050524f20315442-00000002"}, namesByID(id, ns))
	ns.Identify.EUI64 = [8]byte{0, 0x25, 0x38, 1, 2, 3, 4, 5}
	require.Equal(t, "nvme-eui.0025380102030405", last())
	ns.Descriptor.NGUID = [16]byte{0: 1, 15: 2}
	require.Equal(t, "nvme-eui.01000000000000000000000000000002", last())
	ns.Descriptor.UUID = [16]byte{0: 0xab, 15: 0xcd}
	require.Equal(t, "nvme-uuid.ab000000-0000-0000-0000-0000000000cd", last())
	require.True(t, sameID("nvme-QEMU_NVMe_Ctrl_a__1", "nvme-QEMU_NVMe_Ctrl_a_1"))
	require.False(t, sameID("nvme-a_1", "nvme-a_12"))
}

// TestUser: a function that one of our daemons has is said to be that one's.
func TestUser(t *testing.T) {
	all := []*served{{PID: 7, Device: "/dev/sda", Dir: "/a"}, {PID: 8, Device: "0000:04:00.0/1-part2,0000:05:00.0", Dir: "/b"}, {PID: 9, Device: "0000:06:00.0", Dir: "/c"}}
	for function, want := range map[string]string{"0000:04:00.0": `process 8 has it open for "/b"`, "0000:05:00.0": `process 8 has it open for "/b"`,
		"0000:06:00.0": `process 9 has it open for "/c"`, "0000:07:00.0": ""} {
		require.Equal(t, want, user(function, all), function)
	}
}
