// Command ingo proves package sdk/go/device on a GPU of NVIDIA's: ingo FILE, of 4 MiB or more on a mount. It reads pieces into memory of cuMemAlloc's and
// writes them back, each call between others on the same stream, and compares the bytes. It prints "right" for each part, and how the pieces went.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	lanefs "github.com/lanefs/lanefs/sdk/go"
	"github.com/lanefs/lanefs/sdk/go/device"
)

const size = 4 << 20

// The driver's interface; results are CUresult.
var (
	cuInit                   func(flags uint32) int32
	cuDevicePrimaryCtxRetain func(ctx *uintptr, device int32) int32
	cuCtxSetCurrent          func(ctx uintptr) int32
	cuMemAlloc               func(at *uintptr, n uintptr) int32
	cuMemHostRegister        func(at unsafe.Pointer, n uintptr, flags uint32) int32
	cuMemsetD8Async          func(at uintptr, v uint8, n, stream uintptr) int32
	cuMemcpyDtoHAsync        func(to unsafe.Pointer, from, n, stream uintptr) int32
	cuStreamCreate           func(stream *uintptr, flags uint32) int32
	cuStreamSynchronize      func(stream uintptr) int32
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: ingo FILE")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "ingo:", err)
		os.Exit(1)
	}
}

func run(path string) error {
	lib, err := purego.Dlopen("libcuda.so.1", purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return err
	}
	for name, f := range map[string]any{"cuInit": &cuInit, "cuDevicePrimaryCtxRetain": &cuDevicePrimaryCtxRetain, "cuCtxSetCurrent": &cuCtxSetCurrent, "cuMemAlloc_v2": &cuMemAlloc,
		"cuMemHostRegister_v2": &cuMemHostRegister, "cuMemsetD8Async": &cuMemsetD8Async, "cuMemcpyDtoHAsync_v2": &cuMemcpyDtoHAsync, "cuStreamCreate": &cuStreamCreate, "cuStreamSynchronize": &cuStreamSynchronize} {
		purego.RegisterLibFunc(f, lib, name)
	}
	var ctx, at, stream uintptr
	have, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	host := unsafe.Pointer(&have[0])
	onGPU := func() error { return cu(cuCtxSetCurrent(ctx)) } // for the goroutine's thread
	if err := errors.Join(cu(cuInit(0)), cu(cuDevicePrimaryCtxRetain(&ctx, 0)), onGPU(), cu(cuMemAlloc(&at, size)), cu(cuMemHostRegister(host, size, 0)),
		cu(cuStreamCreate(&stream, 1))); err != nil {
		return err
	}
	want, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	stage, err := device.New(f, 0)
	if err != nil {
		return err
	}
	file, err := stage.Open(f)
	if err != nil {
		return err
	}
	show := func() error { // what the memory holds when the stream gets there
		return errors.Join(onGPU(), cu(cuMemcpyDtoHAsync(host, at, size, stream)), cu(cuStreamSynchronize(stream)))
	}
	for _, pieces := range [][]lanefs.Piece{{{Off: 777, MemOff: 13, Len: 100000}}, {{Off: 0, MemOff: 0, Len: size}}, scattered(1000)} {
		for _, how := range []string{"Read", "ReadAsync"} {
			if err := errors.Join(onGPU(), cu(cuMemsetD8Async(at, 0xaa, size, stream))); err != nil {
				return err
			}
			expect := bytes.Repeat([]byte{0xaa}, size)
			for _, p := range pieces {
				copy(expect[p.MemOff:p.MemOff+p.Len], want[p.Off:])
			}
			var batch *device.Batch
			if how == "Read" {
				_, err = file.Read(at, size, pieces, stream)
			} else {
				batch, err = file.ReadAsync(at, size, pieces, stream)
			}
			if err = errors.Join(err, show()); err == nil && batch != nil {
				_, err = batch.Result()
			}
			if err != nil {
				return fmt.Errorf("%s of %d pieces: %w", how, len(pieces), err)
			}
			if !bytes.Equal(expect, have) {
				return fmt.Errorf("%s of %d pieces: wrong bytes", how, len(pieces))
			}
			fmt.Printf("right: %s of %d pieces\n", how, len(pieces))
		}
	}
	// What is on the stream before a write is in the file, what comes behind it is not.
	for i, pieces := range [][]lanefs.Piece{{{Off: 0, MemOff: 0, Len: size}}, scattered(1000)} {
		v := uint8(0x50 + i)
		if err := errors.Join(onGPU(), cu(cuMemsetD8Async(at, v, size, stream))); err != nil {
			return err
		}
		batch, err := file.WriteAsync(at, size, pieces, stream)
		if err = errors.Join(err, onGPU(), cu(cuMemsetD8Async(at, 0xff, size, stream)), show()); err != nil {
			return err
		}
		if _, err := batch.Result(); err != nil {
			return err
		}
		for _, p := range pieces {
			copy(want[p.Off:p.Off+p.Len], bytes.Repeat([]byte{v}, int(p.Len)))
		}
		if have, err := os.ReadFile(path); err != nil || !bytes.Equal(want, have) {
			return fmt.Errorf("WriteAsync of %d pieces: wrong bytes in the file (%w)", len(pieces), err)
		}
		fmt.Printf("right: WriteAsync of %d pieces\n", len(pieces))
	}
	if _, err := file.Read(at, size+4096, []lanefs.Piece{{Off: 0, MemOff: size - 4096, Len: 8192}}, stream); !errors.Is(err, unix.EFAULT) {
		return fmt.Errorf("a piece that ends beyond its allocation: %w", err)
	}
	fmt.Println("right: beyond an allocation")
	fmt.Printf("%+v\n", stage.Ways())
	return errors.Join(file.Close(), stage.Close())
}

// scattered are pieces of the first half of the file to places of their own, in no order.
func scattered(n int) (pieces []lanefs.Piece) {
	each := int64(size / n &^ 3)
	for i, k := range rand.Perm(n) {
		pieces = append(pieces, lanefs.Piece{Off: int64(k) * each / 2, MemOff: int64(i) * each, Len: each / 2})
	}
	return pieces
}

func cu(code int32) error {
	if code != 0 {
		return fmt.Errorf("the driver says %d", code)
	}
	return nil
}
