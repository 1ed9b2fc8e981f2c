package rocm

import (
	"path/filepath"

	"github.com/lanefs/lanefs/lab/made"
)

// Hooked builds the host's kernels from their sources with calls in place of their accesses, which the shim has: with them it knows what resident
// lanes read and write of memory that has two copies (src/backend_cpu.c). clang is clang-19, and the host an x86-64.
func Hooked(clang, sources, image string) error {
	return made.Compile(image, nil, clang, "--target=x86_64-unknown-linux-gnu", "--no-default-config", "-x", "c++", "-std=c++17", "-O1", "-fPIC", "-fno-builtin",
		"-ffreestanding", "-nostdlibinc", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden", "-shared", "-nostdlib", "-fuse-ld=lld", "-fsanitize=thread",
		"-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm", "-tsan-instrument-memintrinsics=0",
		filepath.Join(sources, "engine.hip"))
}
