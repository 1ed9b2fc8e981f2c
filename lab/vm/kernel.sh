#!/bin/bash
# kernel.sh [x86_64|arm64] builds the lab's kernel, once: the newest Debian linux-source of at least 6.19, since older ones neither export BARs as
# DMA-BUF nor take DMA-BUFs in an IOAS. Prints where the image lies. A change of kernel.config builds it again. Status 3: the
# sources cannot be had.
set -euo pipefail
arch=${1:-x86_64}
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lanefs/lab
. "$here/archive.sh"

least=6.19
# options prints those of the kernel. A PC's are none of an Arm machine's.
options() {
	case $arch in
	x86_64) cat "$here/kernel.config" ;;
	arm64) grep -vE '^CONFIG_(X86|ACPI|INTEL|HPET|IRQ_REMAP|SERIAL_8250)' "$here/kernel.config"; cat "$here/kernel.arm64.config" ;;
	esac
}
case $arch in
x86_64) image=bzImage path=arch/x86/boot/bzImage flags=() ;;
arm64) image=Image path=arch/arm64/boot/Image flags=(ARCH=arm64 CROSS_COMPILE=aarch64-linux-gnu-) ;;
*) echo "lab: no kernel for $arch" >&2; exit 1 ;;
esac
want=$(options | sha256sum | cut -c1-16)
out=$cache/kernel-$want
mkdir -p "$cache"
exec 9>"$cache/kernel.lock"
flock -w 3600 9 || { echo "lab: another build of the kernel has held $cache/kernel.lock for an hour" >&2; exit 1; }
if [ -s "$out/$image" ]; then
	echo "$out/$image"
	exit
fi

echo "lab: looking for the newest linux-source" >&2
archive_open source "trixie-backports sid" || exit 3
read -r package version < <(archive_newest 'linux-source-[0-9]+\.[0-9]+') || true
[ -n "${package:-}" ] || { echo "lab: $archive_mirror has no linux-source package; is the mirror right (LANEFS_LAB_MIRROR)?" >&2; exit 3; }
if ! printf '%s\n' "$least" "${package#linux-source-}" | sort -VC; then
	echo "lab: the newest is $package; the lab needs at least $least" >&2
	exit 3
fi

work=$cache/build
rm -rf "$work"
mkdir -p "$work/package" "$work/source"
echo "lab: fetching $package ($version)" >&2
archive_unpack "$package" "$work/package" || exit 3
tar -C "$work/source" --strip-components=1 -xf "$work"/package/usr/src/linux-source-*.tar.xz
rm -rf "$work/package"

cd "$work/source"
build() { make -s "${flags[@]}" KBUILD_BUILD_USER=lanefs KBUILD_BUILD_HOST=lab "$@" >>"$work/log" 2>&1; }
build tinyconfig
options >lab.config
scripts/kconfig/merge_config.sh -m .config lab.config >>"$work/log" 2>&1
build olddefconfig
missing=$(grep '^CONFIG' lab.config | grep -vxFf .config || true)
if [ -n "$missing" ]; then
	echo "lab: $package does not take these options of kernel.config for $arch: $missing" >&2
	exit 1
fi
echo "lab: building $package; about 6 minutes on two idle cores, the log is $work/log" >&2
if ! build -j"$(nproc)" "$image"; then
	tail -30 "$work/log" >&2
	exit 1
fi
build headers # for the parity tests of gpu/vfio
mkdir -p "$out.new"
cp "$path" .config "$out.new/"
cp -r usr/include "$out.new/include"
echo "$package $version" >"$out.new/version"
rm -rf "$out"
mv "$out.new" "$out"
cd /
rm -rf "$work"
echo "$out/$image"
