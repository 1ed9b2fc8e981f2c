#!/bin/sh
# Builds every image of the kernels from engine.hip into build/, those of the tests' own kernels from kerneltest/load.hip into
# kerneltest/build/, and fails if one of them fails. clang-19 and lld-19 are
# what Debian 12 has; CLANG names another.
set -eu
cd "$(dirname "$0")"
clang=${CLANG:-clang-19}
command -v "$clang" >/dev/null || {
	echo "kernels: $clang not found: apt-get install clang-19 lld-19 llvm-19, or set CLANG" >&2
	exit 1
}
# No C library and no vendor headers anywhere: the kernels need none, and the images must not depend on the machine.
flags="-O3 -std=c++17 -ffreestanding -fno-exceptions -fno-rtti -Wall -Wextra -Werror"
amd="gfx90a gfx942 gfx1100 gfx1201"
nvidia="sm_80"

out=build.$$
trap 'rm -rf "$out"' EXIT
mkdir "$out" "$out/kerneltest"

pids=
image() { # name, then the compiler's arguments
	name=$1
	shift
	"$clang" "$@" $flags -o "$out/$name" engine.hip &
	pids="$pids $!"
	"$clang" "$@" $flags -o "$out/kerneltest/$name" kerneltest/load.hip &
	pids="$pids $!"
}

# The host image: no undefined symbols (-z defs), so that it never binds to what happens to be in the process.
host="-x c++ -fno-builtin -fPIC -fvisibility=hidden -shared -nostdlib -fuse-ld=lld -Wl,-z,defs -Wl,-z,now -Wl,--build-id=none"
image host-$(uname -m).so $host
"$clang" $host $flags -o "$out/kerneltest/host-$(uname -m)-slots.so" kerneltest/slots.hip &
pids="$pids $!"
for arch in $amd; do
	image $arch.co -x hip --cuda-device-only --no-gpu-bundle-output --offload-arch=$arch -nogpuinc -nogpulib -mcode-object-version=5
done
for arch in $nvidia; do
	image $arch.ptx -x cuda -Xclang -target-feature -Xclang +ptx70 --cuda-device-only --cuda-gpu-arch=$arch -nocudainc -nocudalib -S
done
for pid in $pids; do
	wait "$pid"
done

# Arm has no image yet, but the sources stay clean for it.
"$clang" --target=aarch64-linux-gnu -x c++ -fno-builtin -fPIC -fsyntax-only $flags engine.hip

install() { # from, to: what is not built any more goes
	mkdir -p "$2"
	for old in "$2"/*; do
		[ -e "$1/${old##*/}" ] || rm -f "$old"
	done
	mv "$1"/* "$2"/
}
install "$out/kerneltest" kerneltest/build
rmdir "$out/kerneltest"
install "$out" build
