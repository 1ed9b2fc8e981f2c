#!/bin/bash
# initramfs.sh OUT PROGRAM... packs the guest's root: busybox, e2fsprogs, the programs given, the libraries they load, and
# in $MODULES, where set, kernel modules and the order to load them in. $SHIM is the folder of the stand-in for ROCm, $SDK that
# of the C library. $ROOT, where set, is a folder of Debian's packages for another CPU (packages.sh): they are taken whole, instead of this machine's programs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
export PATH=$PATH:/usr/sbin:/sbin

root=$(mktemp -d "${TMPDIR:-/tmp}/lanefs-lab-root.XXXXXX")
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,sbin,dev,proc,sys,tmp,run,mnt,root,etc,lib/modules,usr/bin,usr/sbin,var}

loads() { # what a program or library loads
	ldd "$1" 2>/dev/null | grep -o '/[^ ]*' | while read -r lib; do
		mkdir -p "$root$(dirname "$lib")"
		[ -e "$root$lib" ] || cp -L "$lib" "$root$lib"
	done || true
}
add() {
	cp -L "$1" "$root/bin/$(basename "$1")"
	loads "$1"
}
if [ -n "${ROOT:-}" ]; then
	cp -a "$ROOT/." "$root/"
	for a in $(busybox --list); do # this machine's, of the same release
		[ -e "$root/bin/$a" ] || [ -e "$root/sbin/$a" ] || ln -s busybox "$root/bin/$a"
	done
	cp "$@" "$root/bin/"
else
	for tool in mke2fs e2fsck debugfs dumpe2fs tune2fs; do
		add "$(command -v $tool)"
	done
	ln -s mke2fs "$root/bin/mkfs.ext4"
	cp /etc/mke2fs.conf "$root/etc/"
	for tool in dmsetup mdadm lvm sfdisk fusermount3; do # some tests want them, and say so where they are not there
		path=$(command -v $tool) && add "$path"
	done
	add "$(command -v busybox)"
	"$root/bin/busybox" --install -s "$root/bin" 2>/dev/null || for a in $("$root/bin/busybox" --list); do
		[ -e "$root/bin/$a" ] || ln -s busybox "$root/bin/$a"
	done
	# --install made absolute links to the busybox that ran: ours lies at /bin/busybox.
	find "$root/bin" -type l -lname '*/busybox' -exec ln -sf busybox {} \;
	for program; do
		add "$program"
	done
	# The stand-in for ROCm: one library under several names, which only a test that names the folder finds.
	mkdir -p "$root/lib/rocm-shim"
	cp -P "$SHIM"/lib*.so* "$root/lib/rocm-shim/"
	for lib in "$SHIM"/lib*.so*; do
		loads "$lib"
	done
	# Debian's Python, what of its library programs of the SDK use, and the SDK: for a test that says so where they are not there.
	python=$(readlink -f /usr/bin/python3 || true)
	case $python in
	/usr/bin/python3.*)
		add "$python"
		ln -s "$(basename "$python")" "$root/bin/python3"
		(cd / && find "usr/lib/$(basename "$python")" \( -name test -o -name lib2to3 -o -name ensurepip -o -name idlelib -o -name tkinter -o -name pydoc_data -o -name 'config-*' -o \
			-name dist-packages -o -name sitecustomize.py -o -name '_ssl.*' -o -name '_hashlib.*' -o -name '_sqlite3.*' -o -name '_curses*' -o -name '_dbm.*' -o -name 'readline.*' \) -prune \
			-o -type f -print | cpio -pdm --quiet "$root")
		for lib in "$root/usr/lib/$(basename "$python")"/lib-dynload/*.so; do
			loads "$lib"
		done
		mkdir -p "$root/lib/sdk-python"
		cp -r "$here/../../sdk/python/lanefs" "$here/../../sdk/python/tests" "$root/lib/sdk-python/"
		cp -L "$SDK/liblanefs.so.1.0.0" "$root/lib/sdk-python/lanefs/liblanefs.so.1"
		;;
	esac
fi
if [ -n "${MODULES:-}" ]; then
	cp -r "$MODULES/." "$root/lib/modules/"
fi
echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
echo 'root:x:0:' >"$root/etc/group"
cp "$here/init" "$root/init"
chmod 755 "$root" "$root/init" # mktemp made it ours alone
(cd "$root" && find . | cpio -o -H newc --quiet) | gzip -1 >"$out"
