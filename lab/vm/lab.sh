#!/bin/bash
# lab.sh test | shell | bench: what `make lab`, `make lab-shell`, `make lab-bench`, and, with LANEFS_LAB_ARCH, `make lab-arm` do. Nothing is written into the checkout but
# the programs it builds; kernels, and logs by checkout, are kept in the cache. bench measures on Debian's kernel.
#
#   LANEFS_LAB_KVM=1      KVM instead of software emulation
#   LANEFS_LAB_RUN=REGEX  only these tests
#   LANEFS_LAB_KERNEL=lab or stock: only that half (a shell uses lab by default), with all of what the halves share otherwise
#   LANEFS_LAB_ARCH=arm64 an Arm machine whose pages have 64 KiB, on a kernel built for it; a shell in it, too
#   LANEFS_LAB_FULL=1     every pair of the controller matrix, with the transfer limits, on both kernels, and power cuts by QEMU's record
#   LANEFS_LAB_TIMEOUT=S  seconds for the tests of one kernel
#   LANEFS_LAB_MISSING=skip
#                         skip, with a message, what cannot be had (QEMU, a kernel) or makes QEMU itself crash each time;
#                         by default that is an error
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
mode=${1:-test}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lanefs/lab
export PATH=$PATH:/usr/sbin:/sbin
logs=$cache/logs/$(basename "$repo")-$(printf %s "$repo" | sha256sum | cut -c1-8)
mkdir -p "$logs"
if [ "$mode" != shell ]; then
	exec 8>"$logs/lock"
	flock -n 8 || { echo "lab: another lab of this checkout runs, with its logs in $logs" >&2; exit 1; }
fi
# boot is boot.sh, and ends with this shell however that ends.
boot() { setpriv --pdeathsig TERM "$here/boot.sh" "$@" 8>&-; }

# had runs a command that fetches something, and keeps its output in $got. Status 3 of the command: it cannot be had.
had() {
	local status=0
	got=$("$@") || status=$?
	[ $status != 0 ] || return 0
	if [ $status != 3 ] || [ "${LANEFS_LAB_MISSING:-}" != skip ]; then
		exit 1
	fi
	echo "lab: SKIPPED: $(basename "$1") cannot get what it needs (above); make lab, on a machine that can, runs it" >&2
	return 1
}

export LANEFS_LAB_ARCH=${LANEFS_LAB_ARCH:-x86_64}
case $LANEFS_LAB_ARCH in
x86_64) go=amd64 cc=gcc ;;
arm64) go=arm64 cc=aarch64-linux-gnu-gcc LANEFS_LAB_KERNEL=lab ;;
*) echo "lab: LANEFS_LAB_ARCH=$LANEFS_LAB_ARCH: want x86_64 or arm64" >&2; exit 1 ;;
esac
had "$here/deps" || exit 0
if [ "$LANEFS_LAB_ARCH" != x86_64 ]; then
	had "$here/packages.sh" "$LANEFS_LAB_ARCH" || exit 0
	export ROOT=$got
fi
cd "$repo"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/lanefs-lab-build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
# Mounts are on rings where the kernel has them, which is the lab's; on Debian's they are on /dev/fuse.
export CGO_ENABLED=0 GOARCH=$go
"${GO:-go}" build -trimpath -ldflags=-X=github.com/lanefs/lanefs/fs.autoIOUring=on -o "$tmp/lanefs" ./cmd/lanefs
"${GO:-go}" test -c -o "$tmp/lab.test" ./lab/vm
"${GO:-go}" test -c -o "$tmp/vfio.test" ./gpu/vfio
programs=("$tmp/lanefs" "$tmp/lab.test" "$tmp/vfio.test" "$tmp/testgpu" "$tmp/test-c" "$tmp/testmemory")
if [ "$mode" = bench ]; then
	"${GO:-go}" test -c -o "$tmp/namespace.test" ./blockdev/namespace
	programs+=("$tmp/namespace.test")
	LANEFS_LAB_RUN='^TestBlockDeviceFigures$' LANEFS_LAB_KERNEL=stock
fi

unset GOARCH
list=$tmp/lab.test # lists the tests: a program of this machine
if [ "$LANEFS_LAB_ARCH" = x86_64 ]; then
	"${GO:-go}" run ./lab/rocm/mkshim cpu "$tmp/rocm-shim" # it has code of an x86-64's
else
	list=$tmp/list.test
	"${GO:-go}" test -c -o "$list" ./lab/vm
fi
export SHIM=$tmp/rocm-shim
make -s -C sdk/c CC="$cc" BUILD="$tmp/sdk-c"
export SDK=$tmp/sdk-c
"$cc" -O1 -Isdk/c -o "$tmp/testgpu" sdk/c/testgpu.c "$tmp/sdk-c/liblanefs.a" -pthread -ldl
for program in test:test-c testmemory:testmemory; do # these load no GPU's library, and the guest has no libgcc_s
	"$cc" -O1 -std=gnu11 -static -Isdk/c -o "$tmp/${program#*:}" "sdk/c/${program%:*}.c" "$tmp/sdk-c/liblanefs.a" -pthread 2>"$tmp/warnings" || { cat "$tmp/warnings" >&2; exit 1; }
done

half() { # name, kernel, modules or nothing
	MODULES=${3:-} "$here/initramfs.sh" "$tmp/$1.img" "${programs[@]}" || return 1
	if [ "$mode" = shell ]; then
		boot "$2" "$tmp/$1.img" /dev/null shell
		return
	fi
	echo "lab: the $1 kernel"
	rm -f "$logs/$1".*.log
	tests "$1" "$2" "$logs/$1"
}

# tests boots the guest until every test has passed: emulation is slow and QEMU has faults of its own, so tests that did not
# pass run again in a fresh machine, with a message. A test that fails gets one more run. A crash of QEMU is no test's failure; a
# test in which QEMU crashes each time gets no verdict, and the others continue.
tests() { # name, kernel, logs
	local n status at bad test log=$3.log run=${LANEFS_LAB_RUN:-.} failed=" " crashed=" " none=
	LANEFS_LAB_GUEST=1 "$list" -test.list . | grep '^Test' >"$tmp/left" || return 1
	for n in 1 2 3 4; do
		status=0
		LANEFS_LAB_RUN=$run boot "$2" "$tmp/$1.img" "$log" || status=$?
		[ $status != 0 ] || break
		at=$(unfinished "$log") bad=$(verdicts FAIL "$log")
		if [ $status -gt 128 ]; then
			echo "lab: the $1 kernel: QEMU itself crashed (signal $((status - 128))) in $at" >&2
			[[ $at == boot || $crashed != *" $at "* || $failed == *" $at "* ]] || none+=" $at"
			crashed+="$at "
		elif [ "$at" != boot ] || [ -z "$bad" ]; then
			bad+=" $at" # it hung, or the guest's kernel did
		fi
		[ -z "${LANEFS_LAB_RUN:-}" ] || return 1 # with a selection of tests the first result counts
		for test in $bad; do
			[[ $failed != *" $test "* ]] || { echo "lab: the $1 kernel: $test failed twice" >&2; return 1; }
			failed+="$test "
		done
		mv "$log" "$3.$n.log"
		grep -vxFf <(verdicts 'PASS|SKIP' "$3.$n.log"; printf '%s\n' $none) "$tmp/left" >"$tmp/again"
		mv "$tmp/again" "$tmp/left"
		[ -s "$tmp/left" ] || break
		run="^($(paste -sd'|' "$tmp/left"))\$"
		[ $n = 4 ] || echo "lab: the $1 kernel: once more, in a fresh machine: $(paste -sd' ' "$tmp/left"); the log so far is $3.$n.log"
	done
	if [ $status != 0 ] && { [ $status -lt 128 ] || [ -s "$tmp/left" ]; }; then
		echo "lab: the $1 kernel: not passed, after $n boots: $(paste -sd' ' "$tmp/left")$none" >&2
		return 1
	fi
	for test in $failed; do
		[[ " $none " == *" $test "* ]] || second+=" $test ($1)"
	done
	[ -n "$none" ] || return 0
	if [ "${LANEFS_LAB_MISSING:-}" != skip ]; then
		echo "lab: the $1 kernel: no verdict on$none: QEMU itself crashed in it each time" >&2
		return 1
	fi
	echo "lab: SKIPPED on the $1 kernel:$none: QEMU itself crashed in it each time, which is no verdict; the logs are $3.*.log" >&2
	skipped+="$none ($1)"
}

# verdicts are the tests that ended so, by a log; unfinished is the one that had begun and not ended, boot if there is none.
verdicts() { sed -nE "s/^--- ($1): (Test[^ ]*).*/\\2/p" "$2"; }
unfinished() {
	sed -nE 's/^=== RUN +(Test[^ /]*)$/\1/p' "$1" | grep -vxFf <(verdicts 'PASS|SKIP|FAIL' "$1") | tail -1 | grep . || echo boot
}

which=${LANEFS_LAB_KERNEL:-}
[ "$mode" != shell ] || which=${which:-lab}
case $which in
'' | lab | stock) ;;
*) echo "lab: LANEFS_LAB_KERNEL=$which: want lab or stock" >&2; exit 1 ;;
esac
# Both kernels share the tests that are the same work on both (skipOthers in matrix_test.go), unless one of them is chosen.
if [ "$mode" = test ] && [ -z "$which" ]; then export LANEFS_LAB_SHARED=1; fi
status=0 proved= skipped= second=
if [ "$which" != stock ]; then
	if had "$here/kernel.sh" "$LANEFS_LAB_ARCH"; then
		half lab "$got" && proved+=" lab" || status=1
	fi
fi
if [ "$which" != lab ]; then
	if had "$here/stock.sh"; then
		half stock "$got/vmlinuz" "$got/modules" && proved+=" stock" || status=1
	fi
fi
if [ "$mode" = test ] && [ $status = 0 ] && [ -n "$proved" ]; then
	echo "lab: all tests passed${skipped:+ but these, without a verdict:$skipped} (kernels:$proved); the guests' logs are in $logs"
	[ -z "$second" ] || echo "lab: FAILED AT FIRST, passed in a fresh machine:$second. The logs of what failed are $logs/*.1.log and the like" >&2
fi
exit $status
