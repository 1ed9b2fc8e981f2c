#!/bin/bash
# lab.sh test | shell: what `make lab` and `make lab-shell` do. Nothing is written into the checkout but the programs it
# builds; kernels and logs are kept in the cache.
#
#   LANEFS_LAB_KVM=1      KVM instead of software emulation
#   LANEFS_LAB_RUN=REGEX  only these tests
#   LANEFS_LAB_KERNEL=lab or stock: only that half (a shell uses lab unless told otherwise)
#   LANEFS_LAB_FULL=1     every pair of the controller matrix, with the transfer limits
#   LANEFS_LAB_TIMEOUT=S  seconds for the tests of one kernel
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repo=$(dirname "$here")
mode=${1:-test}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lanefs/lab
export PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$cache"

"$here/deps"
cd "$repo"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/lanefs-lab-build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
CGO_ENABLED=0 "${GO:-go}" build -trimpath -o "$tmp/lanefs" ./cmd/lanefs
CGO_ENABLED=0 "${GO:-go}" test -c -o "$tmp/lab.test" ./lab
CGO_ENABLED=0 "${GO:-go}" test -c -o "$tmp/vfio.test" ./nvmeq/vfio

half() { # name, kernel, modules or nothing
	MODULES=${3:-} "$here/initramfs.sh" "$tmp/$1.img" "$tmp/lanefs" "$tmp/lab.test" "$tmp/vfio.test"
	if [ "$mode" = shell ]; then
		"$here/boot.sh" "$2" "$tmp/$1.img" /dev/null shell
		return
	fi
	echo "lab: the $1 kernel"
	"$here/boot.sh" "$2" "$tmp/$1.img" "$cache/$1.log"
}

which=${LANEFS_LAB_KERNEL:-}
[ "$mode" != shell ] || which=${which:-lab}
case $which in
'' | lab | stock) ;;
*) echo "lab: LANEFS_LAB_KERNEL=$which: want lab or stock" >&2; exit 1 ;;
esac
status=0
if [ "$which" != stock ]; then
	kernel=$("$here/kernel.sh")
	half lab "$kernel" || status=1
fi
if [ "$which" != lab ]; then
	stock=$("$here/stock.sh")
	half stock "$stock/vmlinuz" "$stock/modules" || status=1
fi
if [ "$mode" = test ] && [ $status = 0 ]; then
	echo "lab: all tests passed; the guests' logs are in $cache"
fi
exit $status
