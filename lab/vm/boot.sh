#!/bin/bash
# boot.sh KERNEL INITRAMFS LOG [shell]: boots the guest, and returns 0 only if the tests in it passed. A status above 128 is 128
# and the signal by which QEMU itself ended, which is no verdict on the tests. LOG gets the guest's output.
# LANEFS_LAB_KVM=1 uses KVM instead of software emulation, LANEFS_LAB_RUN names tests, LANEFS_LAB_TIMEOUT is the tests'
# limit in seconds: far more than an idle machine needs, since emulation beside other work is several times slower.
# LANEFS_LAB_ARCH=arm64 boots an Arm machine. LANEFS_LAB_SHARED=1 says that the tests run on another kernel, too, and that the two share some of them.
# QEMU ends with this shell, however that ends.
set -euo pipefail
kernel=$1 initramfs=$2 log=$3 mode=${4:-test}
full=${LANEFS_LAB_FULL:-0}
limit=${LANEFS_LAB_TIMEOUT:-$((full ? 14400 : 5400))}

dir=$(mktemp -d "${TMPDIR:-/tmp}/lanefs-lab.XXXXXX")
trap 'rm -rf "$dir"' EXIT
# Media, all sparse: 0 to 6 and 9 to 11 are in the machine from the start, tests give 7 and 8 to controllers they plug in.
for i in 0 1 2 3 4 5 6 7 8 9 10 11; do
	truncate -s 512M "$dir/disk$i.raw"
done
truncate -s 256M "$dir/vram"

case ${LANEFS_LAB_ARCH:-x86_64} in
x86_64)
	qemu=qemu-system-x86_64 cpu=max,la57=off console="console=ttyS0 no_timer_check tsc=reliable"
	machine=(-machine q35,kernel-irqchip=split -device intel-iommu,intremap=on,device-iotlb=on
		-global ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off) # slots of their own, as real root ports have
	;;
arm64)
	# Each controller's BAR gets a page of 64 KiB to itself, as behind ports of their own.
	qemu=qemu-system-aarch64 cpu=max console="console=ttyAMA0 pci=resource_alignment=16@pci:1b36:0010"
	machine=(-machine virt,iommu=smmuv3,gic-version=3)
	;;
esac
accel=(-accel tcg,thread=multi -cpu "$cpu")
if [ "${LANEFS_LAB_KVM:-0}" = 1 ]; then
	accel=(-accel kvm -cpu host)
fi
# Without ASPM in the kernel the firmware does not hand hot plug over by itself.
# On a loaded machine an emulated timer can miss the kernel's check that it ticks, hence no_timer_check.
# On a busy host the kernel's watchdog finds the emulated clock late, calls it unstable, and patches its own code for that: a CPU that QEMU emulates may run into the
# int3 of such a patch (a panic in sched_clock_cpu was seen).
console+=" panic=-1 oops=panic quiet pcie_ports=native"
args=(
	"${machine[@]}" "${accel[@]}" -smp 2 -m "${LANEFS_LAB_MEMORY:-2048}"
	-nodefaults -no-user-config -display none -no-reboot
	-kernel "$kernel" -initrd "$initramfs"
	-drive "file=disk0.raw,if=none,id=d0,format=raw,discard=unmap"
	-drive "file=disk1.raw,if=none,id=d1,format=raw"
	-drive "file=disk2.raw,if=none,id=d2,format=raw"
	-device nvme,serial=LANEFS-0,drive=d0,addr=03.0
	-object memory-backend-file,id=vram,mem-path=vram,size=256M,share=on
	-device ivshmem-plain,memdev=vram,addr=04.0
	-device nvme,serial=LANEFS-1,drive=d1,addr=05.0,multifunction=on
	-device nvme,serial=LANEFS-2,drive=d2,addr=05.1
	-drive "file=disk3.raw,if=none,id=d3,format=raw"
	-drive "file=disk4.raw,if=none,id=d4,format=raw"
	-drive "file=disk5.raw,if=none,id=d5,format=raw"
	-drive "file=disk6.raw,if=none,id=d6,format=raw"
	-device nvme,id=many,serial=LANEFS-MANY,addr=06.0
	-device nvme-ns,bus=many,nsid=1,drive=d3
	-device nvme-ns,bus=many,nsid=2,drive=d4,logical_block_size=4096,physical_block_size=4096
	-device nvme-ns,bus=many,nsid=3,drive=d5,zoned=on,zoned.zone_size=64M
	-device nvme-ns,bus=many,nsid=4,drive=d6,ms=8
	-drive "file=disk9.raw,if=none,id=d9,format=raw"
	-drive "file=disk10.raw,if=none,id=d10,format=raw"
	-drive "file=disk11.raw,if=none,id=d11,format=raw"
	-device nvme-subsys,id=subsystem,nqn=lab
	-device nvme,id=physical,serial=LANEFS-SUB,subsys=subsystem,addr=0a.0,max_ioqpairs=12,msix_qsize=8,sriov_max_vfs=2,sriov_vq_flexible=8,sriov_vi_flexible=4
	-device nvme,id=second,serial=LANEFS-SUB,subsys=subsystem,addr=0b.0
	-device nvme-ns,bus=physical,nsid=1,drive=d9
	-device nvme-ns,bus=physical,nsid=2,drive=d10,shared=off
	-device nvme-ns,bus=physical,nsid=3,drive=d11,detached=on
	-device pcie-root-port,id=port1,chassis=1,addr=07.0
	-device pcie-root-port,id=port2,chassis=2,addr=08.0
	-chardev "socket,id=monitor,path=monitor,server=on,wait=off" -mon chardev=monitor,mode=control
	-chardev "socket,id=guest,path=monitor,reconnect=1"
	-device virtio-serial-pci,addr=09.0 -device virtserialport,chardev=guest,name=qmp
)
cd "$dir"
tied=(setpriv --pdeathsig KILL)
if [ "$mode" = shell ]; then
	"${tied[@]}" "$qemu" "${args[@]}" -append "$console lab.shell" -chardev stdio,id=tty,signal=off -serial chardev:tty
	exit
fi

# The tests end by their own deadline; QEMU gets a little more, for the boot and for a guest that hangs.
set +e # for QEMU's exit status
setpriv --pdeathsig TERM timeout --kill-after=10 $((limit + 120)) "${tied[@]}" "$qemu" "${args[@]}" \
	-append "$console lab.timeout=${limit}s lab.run=${LANEFS_LAB_RUN:-.} lab.full=$full lab.shared=${LANEFS_LAB_SHARED:-0}" -serial stdio </dev/null 2>&1 |
	sed -u 's/\r$//' | tee "$log" | grep --line-buffered -E '^ *(---|===|ok|PASS|FAIL|SKIP|panic|LANEFS-LAB|init:)|_test.go'
status=${PIPESTATUS[0]}
set -e
answer=$(sed -n 's/^LANEFS-LAB-EXIT //p' "$log" | tail -1)
[ "$answer" != 0 ] || exit 0
echo "lab: the end of the guest's log:" >&2
tail -n 80 "$log" >&2
if [ -n "$answer" ]; then
	echo "lab: tests failed in the guest (status $answer); its log is $log" >&2
	exit 1
fi
case $status in # timeout passes on a signal as 128 and its number; 137 is its own last resort
132 | 133 | 134 | 135 | 136 | 139)
	echo "lab: QEMU itself died of SIG$(kill -l "$status"); the guest's log is $log" >&2
	exit "$status"
	;;
esac
echo "lab: the guest ended without a result, or took more than $limit s; its log is $log" >&2
exit 1
