#!/bin/bash
# packages.sh ARCH puts Debian's programs for another CPU, which the guest's root is made of, into a folder in the cache, and prints
# which. Status 3: they cannot be had.
set -euo pipefail
arch=$1
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lanefs/lab
. "$here/archive.sh"
list="libc6 libgcc-s1 busybox-static e2fsprogs libext2fs2 libss2 libcom-err2 libblkid1 libuuid1 fdisk libfdisk1 libsmartcols1 libmount1 libselinux1
	libpcre2-8-0 libtinfo6 libreadline8 fuse3 libfuse3-3 mdadm libudev1"
out=$cache/packages-$arch-$(sha256sum <<<"$list" | cut -c1-16)
mkdir -p "$cache"
exec 9>"$cache/packages.lock"
flock -w 3600 9 || { echo "lab: another lab has held $cache/packages.lock for an hour" >&2; exit 1; }
if [ ! -d "$out" ]; then
	echo "lab: fetching Debian's packages for $arch" >&2
	archive_open "packages-$arch" bookworm "$arch" || exit 3
	rm -rf "$out.new"
	for package in $list; do
		archive_unpack "$package" "$out.new" || exit 3
	done
	rm -rf "$out.new"/usr/share/{doc,man,locale,i18n,lintian,bash-completion} "$out.new"/usr/lib/*/gconv
	chmod 755 "$out.new"
	mv "$out.new" "$out"
fi
echo "$out"
