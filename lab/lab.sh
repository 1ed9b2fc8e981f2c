#!/bin/bash
# lab.sh test | shell: what `make lab` and `make lab-shell` do. Nothing is written into the checkout but the programs it
# builds; kernels and logs are kept in the cache.
#
#   LANEFS_LAB_KVM=1      KVM instead of software emulation
#   LANEFS_LAB_RUN=REGEX  only these tests
#   LANEFS_LAB_KERNEL=lab or stock: only that half (a shell uses lab unless told otherwise)
#   LANEFS_LAB_FULL=1     every pair of the controller matrix, with the transfer limits
#   LANEFS_LAB_TIMEOUT=S  seconds for the tests of one kernel
#   LANEFS_LAB_MISSING=skip
#                         what cannot be had (QEMU, a kernel) is skipped, and said; else it is an error
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repo=$(dirname "$here")
mode=${1:-test}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lanefs/lab
export PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$cache"

# had carries out what fetches something, and keeps in $got what it prints. Its status 3 says that it cannot be had.
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

had "$here/deps" || exit 0
cd "$repo"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/lanefs-lab-build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
CGO_ENABLED=0 "${GO:-go}" build -trimpath -o "$tmp/lanefs" ./cmd/lanefs
CGO_ENABLED=0 "${GO:-go}" test -c -o "$tmp/lab.test" ./lab
CGO_ENABLED=0 "${GO:-go}" test -c -o "$tmp/vfio.test" ./nvmeq/vfio

"${GO:-go}" run ./gpu/hip/shim/mkshim cpu "$tmp/rocm-shim"
export SHIM=$tmp/rocm-shim

half() { # name, kernel, modules or nothing
	MODULES=${3:-} "$here/initramfs.sh" "$tmp/$1.img" "$tmp/lanefs" "$tmp/lab.test" "$tmp/vfio.test" || return 1
	if [ "$mode" = shell ]; then
		"$here/boot.sh" "$2" "$tmp/$1.img" /dev/null shell
		return
	fi
	echo "lab: the $1 kernel"
	if "$here/boot.sh" "$2" "$tmp/$1.img" "$cache/$1.log"; then
		return
	fi
	[ -z "${LANEFS_LAB_RUN:-}" ] || return 1 # who asks for some wants their first answer
	# An emulated machine has bad moments, and QEMU its own faults: what did not pass has a second chance, said aloud.
	mv "$cache/$1.log" "$cache/$1.first.log"
	LANEFS_LAB_GUEST=1 "$tmp/lab.test" -test.list . | grep '^Test' | grep -vxFf <(passed "$cache/$1.first.log") >"$tmp/again" || return 1
	echo "lab: the $1 kernel: once more, in a fresh machine: $(paste -sd' ' "$tmp/again"); the first log is $cache/$1.first.log"
	LANEFS_LAB_RUN="^($(paste -sd'|' "$tmp/again"))\$" "$here/boot.sh" "$2" "$tmp/$1.img" "$cache/$1.log"
}

passed() { sed -nE 's/^--- (PASS|SKIP): (Test[^ ]*).*/\2/p' "$1"; }

which=${LANEFS_LAB_KERNEL:-}
[ "$mode" != shell ] || which=${which:-lab}
case $which in
'' | lab | stock) ;;
*) echo "lab: LANEFS_LAB_KERNEL=$which: want lab or stock" >&2; exit 1 ;;
esac
status=0 proved=
if [ "$which" != stock ]; then
	if had "$here/kernel.sh"; then
		half lab "$got" && proved+=" lab" || status=1
	fi
fi
if [ "$which" != lab ]; then
	if had "$here/stock.sh"; then
		half stock "$got/vmlinuz" "$got/modules" && proved+=" stock" || status=1
	fi
fi
if [ "$mode" = test ] && [ $status = 0 ] && [ -n "$proved" ]; then
	echo "lab: all tests passed (kernels:$proved); the guests' logs are in $cache"
fi
exit $status
