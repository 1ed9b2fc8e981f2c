#!/bin/bash
# Fetches the newest kernel package of Debian's archive as it is, and keeps of it what the guest needs: the image, and the
# modules below with those they depend on. Prints the directory. Debian's kernels have VFIO's type1 and no IOMMUFD.
# Status 3: it cannot be had.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lanefs/lab
. "$here/archive.sh"

modules="nvme ext4 fuse vfio-pci vfio_iommu_type1 virtio_pci virtio_console loop dm-mod raid1 raid0"
# Tests load these themselves: they make devices when they are loaded, or one test needs them.
later="null_blk sd_mod scsi_debug dm-log-writes"

mkdir -p "$cache"
exec 9>"$cache/stock.lock"
flock -w 1800 9 || { echo "lab: another download has held $cache/stock.lock for half an hour" >&2; exit 1; }
# A kernel fetched in the last thirty days is new enough, if it has these modules.
found=$(find "$cache" -maxdepth 2 -path '*/stock-*/complete' -mtime -30 2>/dev/null | sort -V | tail -1)
if [ -n "$found" ] && [ "$(cat "$found")" = "$modules; $later" ]; then
	dirname "$found"
	exit
fi

echo "lab: looking for the newest kernel package" >&2
archive_open stock "trixie trixie-backports sid" || exit 3
# Since 7.2 the image is in a package of its own, before in linux-image; the modules likewise.
pick() { archive_newest "$1-[0-9].*[0-9]-amd64" | cut -d' ' -f1 || true; } # nothing, if there is none
binary=$(pick linux-binary)
[ -n "$binary" ] || binary=$(pick linux-image)
[ -n "$binary" ] || { echo "lab: $archive_mirror has no kernel package; is the mirror right (LANEFS_LAB_MIRROR)?" >&2; exit 3; }
version=${binary#linux-*-}
out=$cache/stock-$version
rm -rf "$out.new"
mkdir -p "$out.new/root"
for package in "$binary" "linux-modules-$version"; do
	[ "$package" = "$binary" ] || APT_CONFIG=$archive/conf apt-cache show "$package" >/dev/null 2>&1 || continue
	echo "lab: fetching $package" >&2
	archive_unpack "$package" "$out.new/root" || exit 3
done
root=$out.new/root
image=$(find "$root" -name "vmlinuz*" | head -1)
tree=$(find "$root" -type d -path "*/modules/$version" | head -1)
[ -s "$image" ] && [ -d "$tree" ] || { echo "lab: $binary has no image, or no modules for $version" >&2; exit 1; }
mv "$image" "$out.new/vmlinuz"
config=$(find "$root" -path '*/boot/config*' -type f | head -1)
[ -z "$config" ] || cp "$config" "$out.new/config"

# depmod wants DIR/lib/modules/VERSION.
mkdir -p "$out.new/all/lib/modules"
mv "$tree" "$out.new/all/lib/modules/$version"
depmod -b "$out.new/all" "$version" 2>/dev/null # it misses lists that are in another package
mkdir -p "$out.new/modules"
keep() { # list, modules: keeps them with those they depend on, and lists them in the order to load
	local m file name
	for m in $2; do
		# What is built into the kernel has no file.
		modprobe -d "$out.new/all" -S "$version" --show-depends "$m" 2>/dev/null || echo "lab: $m is not a module of $version" >&2
	done | sed -n 's/^insmod //p' | awk '!seen[$1]++ { print $1 }' >"$out.new/$1"
	while read -r file; do
		name=$(basename "$file")
		case $name in
		*.xz) xz -dc "$file" >"$out.new/modules/${name%.xz}" ;;
		*.zst) zstd -qdc "$file" >"$out.new/modules/${name%.zst}" ;;
		*) cp "$file" "$out.new/modules/" ;;
		esac
		name=${name%.xz}
		echo "${name%.zst}"
	done <"$out.new/$1" >"$out.new/modules/$1"
	rm "$out.new/$1"
}
keep order "$modules"
keep later "$later"
rm -rf "$out.new/all" "$out.new/root"
echo "$binary" >"$out.new/version"
echo "$modules; $later" >"$out.new/complete"
rm -rf "$out"
mv "$out.new" "$out"
echo "$out"
