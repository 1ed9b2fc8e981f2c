#!/bin/bash
# Makes the images of the kernels: engine.hip into images/, those of measurements into traced/images/, the programs' kernel, pieces.hip,
# into the C SDK's images/, the tests' own kernels into kerneltest/images/. They are committed,
# so that a checkout builds without clang, and images.sum says which sources and images belong together.
#
#     build.sh           makes all images; go generate runs this
#     build.sh update    the same, if a source or an image is not what images.sum says
#     build.sh check     makes all images elsewhere, and fails with the name of each committed file that differs
#
# The same sources make the same bytes on every machine: the compiler and the linker are of one version, nothing of the machine
# is included, and no path, version of a package or time gets into an image. CLANG names another clang than clang-19.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")"

version=19.1.7
clang=${CLANG:-clang-19}
host_archs="x86_64 aarch64"
amd="gfx90a gfx942 gfx1100 gfx1201"
# What that clang does not know, or not for use: MI350, and LLVM's generic targets, each for all GPUs of a family.
newer_version=22.1.8
newer_clang=${NEWER_CLANG:-clang-22}
newer_amd="gfx950 gfx9-4-generic gfx11-generic gfx12-generic"
nvidia="sm_80"
sdk=../sdk/c/images

# toolchain says what is wrong with the compilers or the linkers, and nothing if all are as they should be.
toolchain() {
	one_toolchain "$clang" $version && one_toolchain "$newer_clang" $newer_version
}

# one_toolchain is that of the clang $1, of version $2. It fails if it has said something.
one_toolchain() {
	local lld clang=$1 version=$2
	if ! command -v "$clang" >/dev/null; then
		echo "$clang is missing"
	elif [ "$("$clang" -dumpversion)" != $version ]; then
		echo "$clang is $("$clang" -dumpversion)"
	elif ! lld=$("$("$clang" -print-prog-name=ld.lld)" --version 2>/dev/null); then
		echo "ld.lld of $clang is missing"
	elif [[ "$lld " != *"LLD $version "* ]]; then
		echo "ld.lld of $clang is $lld"
	else
		return 0
	fi
	return 1
}

# need ends the script unless the images can be made here.
need() {
	local wrong
	wrong=$(toolchain) && return 0
	echo "kernels: $wrong; images are made by clang and lld $version and $newer_version: apt-get install clang-19 lld-19 clang-22 lld-22 on Debian 12, or set CLANG and NEWER_CLANG." >&2
	echo "kernels: to go to another version, change it in build.sh and commit what go generate ./kernels makes." >&2
	exit 1
}

# sums lists the sources and the images with their hashes.
sums() {
	sha256sum build.sh *.h *.hip kerneltest/*.hip traced/*.hip images/* kerneltest/images/* traced/images/* "$sdk"/*
}

# No C library and no vendor's headers: the kernels need none. No configuration of the machine's clang, no CUDA or ROCm that it
# would find, no name of the compiler's package (-fno-ident, LLD_VERSION), no hash of the path (-fuse-cuid).
unset CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH CCC_OVERRIDE_OPTIONS
export LLD_VERSION="LLD $version"
flags=(--no-default-config -O3 -std=c++17 -ffreestanding -nostdlibinc -fno-exceptions -fno-rtti -fno-ident -Wall -Wextra -Werror)
host=(--target=x86_64-unknown-linux-gnu)
gpu=("${host[@]}" --cuda-device-only -fuse-cuid=none)
hip=(-x hip --no-gpu-bundle-output -nogpuinc -nogpulib -mcode-object-version=5)
cuda=(-x cuda -Xclang -target-feature -Xclang +ptx70 --cuda-path=/nonexistent -nocudainc -nocudalib)

# build makes every image in the folders $1 (the engine's), $2 (the tests'), $3 (the SDK's) and $4 (those of measurements).
build() {
	local pids=() arch cpus
	cpus=$(nproc)
	start() { # a compiler with its arguments, once fewer than one more than there are CPUs run: each takes some 100 MB
		((${#pids[@]} <= cpus)) || finish
		"$@" "${flags[@]}" &
		pids+=($!)
	}
	finish() { # waits for the first that was started
		wait "${pids[0]}"
		pids=("${pids[@]:1}")
	}
	image() { # compiler, name, then the compiler's arguments
		local clang=$1 name=$2
		shift 2
		start "$clang" "$@" -o "$engine/$name" engine.hip
		start "$clang" "$@" -o "$tests/$name" kerneltest/load.hip
		start "$clang" "$@" -o "$pieces/$name" pieces.hip
		start "$clang" "$@" -o "$traced/$name" traced/traced.hip
	}
	local engine=$1 tests=$2 pieces=$3 traced=$4
	# No undefined symbols (-z defs), so that it never binds to what happens to be in the process. For Arm no calls of libgcc's atomics.
	local so=(-x c++ -fno-builtin -fPIC -fvisibility=hidden -shared -nostdlib -fuse-ld=lld
		-Wl,-z,defs -Wl,-z,now -Wl,--build-id=none)
	for arch in $host_archs; do
		local of=(--target="$arch-unknown-linux-gnu" "${so[@]}")
		[ "$arch" != aarch64 ] || of+=(-mno-outline-atomics)
		image "$clang" "host-$arch.so" "${of[@]}"
		start "$clang" "${of[@]}" -o "$tests/host-$arch-slots.so" kerneltest/slots.hip
	done
	for arch in $amd; do
		image "$clang" "$arch.co" "${gpu[@]}" "${hip[@]}" --offload-arch="$arch"
	done
	for arch in $newer_amd; do
		image "$newer_clang" "$arch.co" "${gpu[@]}" "${hip[@]}" $([[ $arch != *-generic ]] || echo -mcode-object-version=6) --offload-arch="$arch"
	done
	for arch in $nvidia; do
		image "$clang" "$arch.ptx" "${gpu[@]}" "${cuda[@]}" --cuda-gpu-arch="$arch" -S
	done
	while ((${#pids[@]})); do
		finish
	done
	gzip -9n "$engine"/* "$tests"/* "$traced"/*
	chmod 644 "$engine"/* "$tests"/* "$pieces"/* "$traced"/*

	# nvme_qp.h stands alone, for each kind of target.
	"$clang" --target=aarch64-unknown-linux-gnu -x c++ -fsyntax-only "${flags[@]}" qp/read.hip
	"$clang" "${host[@]}" -x c++ -fsyntax-only "${flags[@]}" qp/read.hip
	"$clang" "${gpu[@]}" "${hip[@]}" --offload-arch=gfx90a -fsyntax-only "${flags[@]}" qp/read.hip
	"$clang" "${gpu[@]}" "${cuda[@]}" --cuda-gpu-arch=sm_80 -fsyntax-only "${flags[@]}" qp/read.hip
}

# make_images makes the images and puts them in their folders; what is not made any more goes.
make_images() {
	build "$out/engine" "$out/tests" "$out/pieces" "$out/traced"
	rm -rf images kerneltest/images traced/images "$sdk"
	mv "$out/engine" images
	mv "$out/tests" kerneltest/images
	mv "$out/pieces" "$sdk"
	mv "$out/traced" traced/images
	sums >images.sum
}

# check compares what the sources make with what is committed.
check() {
	local differs=0 kind folder file
	build "$out/engine" "$out/tests" "$out/pieces" "$out/traced"
	for kind in engine tests pieces traced; do
		case $kind in
		engine) folder=images ;;
		tests) folder=kerneltest/images ;;
		pieces) folder=$sdk ;;
		traced) folder=traced/images ;;
		esac
		for file in $( (ls "$out/$kind" && ls "$folder") | sort -u); do
			cmp -s "$out/$kind/$file" "$folder/$file" && continue
			echo "kernels: kernels/$folder/$file is not what the sources make" >&2
			differs=1
		done
	done
	sums | cmp -s - images.sum || {
		echo "kernels: kernels/images.sum is not of these sources and images" >&2
		differs=1
	}
	[ $differs = 0 ] || {
		echo "kernels: run go generate ./kernels and commit what it makes" >&2
		exit 1
	}
	echo "kernels: the images are what the sources make"
}

scratch() {
	mkdir -p ../build
	out=$(mktemp -d ../build/kernels.XXXXXX)
	trap 'rm -rf "$out"' EXIT
	mkdir "$out/engine" "$out/tests" "$out/pieces" "$out/traced"
}

case ${1:-} in
"")
	need
	scratch
	make_images
	;;
update)
	! sums 2>/dev/null | cmp -s - images.sum || exit 0
	need
	scratch
	make_images
	;;
check)
	wrong=$(toolchain) || true
	if [ -n "$wrong" ] && [ -z "${LANEFS_NEED_CLANG:-}" ]; then
		echo "kernels: not checked whether the images are what the sources make: $wrong, and it takes clang and lld $version and $newer_version (make deps)"
		exit 0
	fi
	need
	scratch
	check
	;;
*)
	echo "usage: build.sh [update|check]" >&2
	exit 2
	;;
esac
