# LaneFS. On a fresh Debian 12 machine with Go, as root: make demo.

SHELL       := /bin/bash
.ONESHELL:
.SHELLFLAGS := -eo pipefail -c

GO          ?= go
STATICCHECK := v0.8.2
CACHE       ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/lanefs
VERSION     := $(shell git describe --tags --always --dirty 2>/dev/null)
# Built by the Go that is used: by an older one it cannot read the library of a newer.
TOOL        := $(CACHE)/staticcheck-$(STATICCHECK)-$(shell $(GO) env GOVERSION)/staticcheck
# What mkfs, losetup and mount live in is not on every user's PATH.
export PATH := $(PATH):/usr/sbin:/sbin

# make test DETECT=1, which is CI's: what follows runs under the race detector, which takes half as long again. Without it all runs without the detector.
DETECT      ?=

# Packages with more than one goroutine in them; the rest are pure, and run without the detector's cost. fs drives
# fs/ext4 from many goroutines, so the detector sees that too; ext4's own tests are long and mostly of one goroutine.
RACE := ./blockdev ./blockdev/internal/... ./blockdev/latency ./blockdev/namespace ./blockdev/partition ./cmd/lanefs/internal/... ./fs ./fs/share/... ./fs/residency ./sdk/go ./sdk/go/device ./fs/ext4/jbd2/... ./gpu/... ./nvmeq/... ./lab/rocm

# Of the program's own tests, most of which start it again and again, which takes the detector four times as long: those of what goes on at
# the same time. On rings they run with the detector only; over /dev/fuse without it, but for what is in NOT_TWICE.
RACE_SOME := ./cmd/lanefs
RACE_TESTS := ^Test(Crowd|Foreground|KilledDaemon|LanesOfBothKinds|MountTwice|OneVolumeOneWriter|Prometheus|Raw|Remount|Run|SeveralGPUs|Signals|Top|Trace|UmountBusy|VRAM|VRAMKilled|VRAMSockets)$$

# Of the journal's tests, the long ones in which one goroutine changes a volume after another, or a kernel does, and one that maps ten
# thousand files: without the detector, which makes them take six times as long. make race has the journal's with it.
RACE_LESS := ./fs/ext4/jbd2 ./fs/share
RACE_LESS_TESTS := ^Test(PowerCuts|RecoverDebugfs|RecoverKernel|KernelRecoversOurs|ShutdownKernel|FastCommits|ManyRegistered)$$

# What takes longest begins first, so that it is not what the rest has ended long before. Each has a go test of its own; the others share some.
FIRST := ./cmd/lanefs ./fs ./lab/diff ./fs/ext4 ./nvmeq/engine ./kernels ./lab/media ./fs/ext4/jbd2 ./sdk/go ./lab/iofault ./fs/share ./lab/rocm ./lab/powercut \
	./sdk/c/ctest ./lab/hostile ./lab/attack ./sdk/cufile/cufiletest ./nvmeq/softctl ./sdk/python ./blockdev

# Packages whose tests may run in several parts at once, on rings in two, else what takes longest would run three times, one after another: what they share with themselves
# they lock (installed, in run_test.go, a build folder; uringtest, the switches of io_uring), and nothing that they look for has a name that another process's test gives.
BESIDE := ./cmd/lanefs

# Packages whose tests mount: they run over io_uring, and once more over /dev/fuse, without DETECT=1 a quarter of them, by the seed. lab/attack's do not: they attack the share's socket, its
# rings and stages, in which the transport has no part; make attack has both.
MOUNTS := ./cmd/lanefs ./fs ./fs/share ./sdk/go ./lab/diff ./lab/media

# Tests of package fs of both transports that are not built for the race detector, or skip there: so the part over /dev/fuse is where DETECT=1 has them.
NOT_RACED := |^Test(Mounts|MixedWorkTakesLittleMemory|ReadsOfAllSizesTakeLittleMemory|SeekTogether)$$

# What the transport has no part in, and what names a transport itself, or both. Of lab/diff's sequences those of other layouts (1 KiB, no journal, block
# maps, inline data) and those that fill a volume: what they vary is below the transport. Of lab/media's media those under the write-back cache,
# about half of those that the seed says: other states of the sources have the others.
NOT_TWICE := ^Test(Array|ArrayOnGPU|AutoTakesGPU|BadInput|Bench.*|BesideKernel|BridgeMount|Check.*|CurrentGPUStays|DriverHangs|Hung(Closing|Commands|Opening)|StopHungOpening|GDB|InstallElsewhere|LanesOfBothKinds|Errors(Panic|ReadOnly)|Finds|ForeignFileSystem|Geometries|GPUFails(Unused)?|HIPCopies.*|HIPShare|KilledWhileItWaitsForItself|ManyRegistered|NumberAgain|OutOfDeviceMemory|Prometheus|Prove.*|RunHIP|SeveralGPUs.*|SeveralAMDGPUs|Tutorial|UmountHeld|SignalHeld|UnusableGPU|WhichGPU|Frozen|GivenBack|IOUring|IOUring(Copies|Data|Payload.*|SwitchedOff|Unavailable)|NestedRings|NoRings|RingsInUserNamespace|KilledReader|LazyWhileWaiting|AbortedWhileWaiting|TwoMounts|Fusermount|DescriptorUnknown|FewDescriptorsBesideRings|FewReaders|FullQueue|Install|PayloadCopies|PayloadHeld|PayloadsShort|RunStatus|SchedIdle(BesideGPU)?|TagsOnBlockDevices|IOUringOff)$$|^Test(Differential|Fresh)$$/^direct|^TestDifferential$$/(1k|no_journal|ext3|inline_data)|^TestFull$$|^TestMatrix$$/writeback_cache|^TestPosix$$/^io_uring$(if $(DETECT),,$(NOT_RACED))

.PHONY: all deps deps-run kernels kernels-check isa model build docs check test race cases crash-test fault-test fuzz stress attack demo bench pictures install uninstall deb deb-test boot-test gpubundle lab lab-arm lab-shell lab-bench clean
all: build

deps: ## install what is missing (apt-get; root)
	@lab/deps

deps-run: ## the same without compilers for the kernels, whose images are committed
	@lab/deps run

kernels: ## the kernels' images again, if a source changed: host object, code objects for AMD GPUs, PTX
	@kernels/build.sh update

isa: ## the checks of instructions by data flow, of every image for GPUs, those of measurements too, and mistakes planted all over the PTX: three minutes
	@LANEFS_ISA=all $(GO) test -count=1 -timeout 30m -run 'Test(Flow|PTXFlow|PTXFlowFails)$$' ./kernels

model: ## all executions of the lanes' step and of the rings under the C11 memory model, each order weakened, mistakes planted: two minutes
	@LANEFS_MODEL=all $(GO) test -count=1 -v -run 'TestModel$$' ./kernels

kernels-check: ## whether the committed images are what the sources make, byte for byte; LANEFS_NEED_CLANG=1 fails without clang
	@kernels/build.sh check

build: kernels ## ./lanefs
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-X main.built=$(VERSION)" -o lanefs ./cmd/lanefs

docs: ## the pictures and generated sections of the documents
	@$(GO) generate ./cmd/lanefs
	$(GO) run ./docs/make
	$(GO) run ./lab/bench -svg docs/bench.svg docs/PERFORMANCE.md

check: kernels-check $(TOOL) ## gofmt, vet, staticcheck, and whether the documents are true: generated ones up to date, names that exist, packages that say what they are
	@out=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go'))
	if [ -n "$$out" ]; then echo "not formatted by gofmt:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	GOARCH=arm64 CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/lanefs
	CGO_ENABLED=0 $(TOOL) ./...
	$(GO) test -count=1 ./docs
	echo "check: gofmt, vet and staticcheck have nothing to say"

$(TOOL):
	@GOBIN=$(@D) CGO_ENABLED=0 $(GO) install honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK)

test: kernels ## every test that needs no special hardware; ends with what was skipped and why; DETECT=1 for the race detector where goroutines are
	@GO="$(GO)" DETECT="$(DETECT)" RACE="$(RACE)" RACE_SOME="$(RACE_SOME)" RACE_TESTS='$(RACE_TESTS)' RACE_LESS="$(RACE_LESS)" RACE_LESS_TESTS='$(RACE_LESS_TESTS)' FIRST="$(FIRST)" BESIDE="$(BESIDE)" MOUNTS="$(MOUNTS)" NOT_TWICE='$(NOT_TWICE)' $(GO) run ./lab/gotest

race: kernels ## fs/ext4, the program and the campaigns under the race detector, which make test DETECT=1 has without it: about an hour, for every night
	@CGO_ENABLED=1 nice -n 19 $(GO) test -race -timeout 3h $(or $(RACE_PACKAGES),./blockdev/md ./fs/ext4/... ./cmd/lanefs ./lab/...)

cases: kernels ## every case of the tests of which make test takes a part by the seed: layouts, damaged images, denied calls, compilers, ways of the stand-ins; some 45 minutes on a busy machine
	@for rings in on off; do
		env -u LANEFS_SEED CGO_ENABLED=0 GOFLAGS=-ldflags=-X=github.com/lanefs/lanefs/fs.autoIOUring=$$rings nice $(GO) test -count=1 -timeout 2h \
			-run '^Test(CheckVerdicts|Denied|Differential|Finds|Full|GPUFails|GPUFailsUnused|HIPShare|Matrix|RunTwoMounts|TagsOnBlockDevices)$$' ./cmd/lanefs ./lab/diff ./lab/media
	done
	env -u LANEFS_SEED CGO_ENABLED=0 nice $(GO) test -count=1 -timeout 2h -run '^Test(BesideKernel|Campaign|DeepCut|FailsHalfWay|FastCommits|Flow|FullVolume|Images|ISAChecksFail|KernelReads|LargeBlocks|Memory|NoSpace|Odd|Planted|PTXFlow|PTXFlowFails|QueuePair|Race|ReadKernel|Scarce|ThreadSanitizer|Torch)$$' \
		./fs/ext4 ./kernels ./lab/hostile ./lab/iofault ./lab/media ./lab/powercut ./sdk/c/ctest ./sdk/cufile/cufiletest ./sdk/python

crash-test: deps-run kernels ## 20 minutes of power cuts; CRASH_TIME=1h, CRASH_SEED=7, CRASH_CUTS=100 and the like change that
	@CGO_ENABLED=0 $(GO) run ./lab/powercut/crash

fault-test: deps-run kernels ## 20 minutes of faults in the middle of operations; FAULT_TIME=1h, FAULT_SEED=7, FAULT_OUTSIDE=1000 and the like change that
	@CGO_ENABLED=0 nice $(GO) run ./lab/iofault/faults
	LANEFS_PLANTED=all nice $(GO) test -count=1 -timeout 2h -v -run TestPlanted ./lab/iofault | grep --line-buffered -v '^=== '
	LANEFS_HUNG_LOOP=1 nice $(GO) test -count=1 -v -run TestHungLoop ./cmd/lanefs | grep --line-buffered -v '^=== '
	for rings in on off; do
		echo "the binary over a failing image, io_uring=$$rings"
		GOFLAGS=-ldflags=-X=github.com/lanefs/lanefs/fs.autoIOUring=$$rings LANEFS_OUTSIDE=$(or $(FAULT_OUTSIDE),300) \
			nice $(GO) test -count=1 -timeout 2h -v -run TestOutside ./lab/iofault | grep --line-buffered -v '^=== '
	done

fuzz: kernels ## every fuzzer, a minute each; FUZZ_TIME=5m, FUZZ=ext4/dir and the like change that
	@GO="$(GO)" nice -n 19 lab/fuzz

stress: deps kernels ## stress-ng's file system stressors under the race detector, 10 minutes over io_uring and 10 over /dev/fuse; STRESS_TIME=1h changes that
	@command -v stress-ng >/dev/null || { apt-get update -qq && apt-get install -y --no-install-recommends stress-ng; }
	CGO_ENABLED=1 $(GO) build -race -o build/lanefs-race ./cmd/lanefs
	for rings in on off; do
		nice -n 19 $(GO) run ./lab/stress -lanefs build/lanefs-race -io_uring $$rings -time $(or $(STRESS_TIME),10m)
	done

attack: kernels ## ordinary users attack a mount, while operations of root must succeed: a minute over io_uring, one over /dev/fuse; ATTACK_TIME=1h, ATTACK_RINGS=off
	@for rings in $(or $(ATTACK_RINGS),on off); do
		CGO_ENABLED=0 nice -n 19 $(GO) run ./lab/attack -io_uring $$rings -time $(or $(ATTACK_TIME),1m)
	done

demo: ## the first mount, from mkfs to fsck
	@lab/deps demo
	echo "demo: building lanefs; the first time Go fetches modules and compiles everything, which takes some minutes on a slow machine"
	$(MAKE) --no-print-directory build
	$(GO) run ./lab/demo -lanefs ./lanefs

bench: deps-run build ## LaneFS, a null file system, fuse2fs and the kernel's ext4 side by side: it says how long; BENCH='-rows random -runs 3' and the like
	@need=(); for c in git tar sqlite3 stress-ng; do command -v $$c >/dev/null || need+=($$c); done
	[ $${#need[@]} -eq 0 ] || { apt-get update -qq && apt-get install -y --no-install-recommends "$${need[@]}"; }
	$(GO) run ./lab/bench -lanefs ./lanefs $(BENCH)

pictures: deps-run build ## docs/top.svg, from the screen of a real mount; root
	@LANEFS_TOP_SVG="$(CURDIR)/docs/top.svg" $(GO) test -count=1 -run 'TestTopPicture$$' ./cmd/lanefs

PREFIX ?= /usr/local
# mount(8) looks for helpers in /sbin only, which is a link to /usr/sbin where /usr is merged.
SBINDIR ?= /usr/sbin
# What a program brings; /etc/modprobe.d is the administrator's, and a file lanefs.conf there takes the place of this one (modprobe.d(5)).
MODPROBEDIR ?= /usr/lib/modprobe.d
UDEVDIR ?= /usr/lib/udev/rules.d
BINARY := ./lanefs
# The C SDK's libraries; those of lanefs run are in a directory of their own there, in which no loader looks.
LIBDIR ?= $(PREFIX)/lib
# no: without what is in C.
SDK    ?= yes
install: build ## lanefs, its manual pages, completions, systemd units, the C SDK and libcufile into $(DESTDIR)$(PREFIX), the helpers of mount(8) and umount(8) into $(DESTDIR)$(SBINDIR), udev rules and the fuse module's option; SDK=no without a C compiler
	@if [ "$(SDK)" != no ] && ! { echo '#include <stdio.h>' | $(CC) -E -x c - >/dev/null 2>&1; }; then
		echo "install: there is no C compiler ($(CC)), or no libc6-dev, for the C SDK and what lanefs run needs: apt-get install gcc libc6-dev, or make install SDK=no, without these" >&2
		exit 1
	fi
	install -d "$(DESTDIR)$(PREFIX)/bin"
	install -m 755 "$(BINARY)" "$(DESTDIR)$(PREFIX)/bin/lanefs"
	cmd/lanefs/dist/install "$(BINARY)" "$(DESTDIR)" "$(PREFIX)" "$(SBINDIR)" "$(MODPROBEDIR)" "$(UDEVDIR)"
	if [ "$(SDK)" != no ]; then
		$(MAKE) --no-print-directory -s -C sdk/c install DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" LIBDIR="$(LIBDIR)"
		$(MAKE) --no-print-directory -s -C sdk/cufile install DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" LIBDIR="$(LIBDIR)/lanefs"
	fi
	if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi

uninstall: ## removes what make install has placed, if it is given the same PREFIX, DESTDIR and so on; mounts go on until they are unmounted
	@list=$$(mktemp -d)
	trap 'rm -rf "$$list"' EXIT
	$(MAKE) --no-print-directory -s install DESTDIR="$$list" >/dev/null
	(cd "$$list" && find . ! -type d -printf '%P\0') | while IFS= read -r -d '' file; do rm -f "$(DESTDIR)/$$file"; done
	(cd "$$list" && find . -depth -type d -name lanefs -printf '%P\0') | while IFS= read -r -d '' dir; do
		[ ! -d "$(DESTDIR)/$$dir" ] || rmdir --ignore-fail-on-non-empty "$(DESTDIR)/$$dir"
	done
	if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi

deb: kernels ## build/deb: Debian packages of the program, the C library and the Python package; lintian's errors fail it
	@lab/deps deb
	rm -rf build/deb
	GO="$(GO)" cmd/lanefs/dist/deb build/deb
	lintian --allow-root --fail-on error --suppress-tags initial-upload-closes-no-bugs build/deb/*.deb

deb-test: deb ## the packages in a fresh Debian 12: installed, used, upgraded under a mount, removed; root, and some minutes the first time; LANEFS_DEB_SUITE=trixie: Debian 13
	@lab/deb/test build/deb

boot-test: deb ## a virtual machine with systemd: mounts by fstab, units and lanefs-bind@ at boot, a shutdown within the limit, a second boot
	@lab/deb/boot build/deb

gpubundle: kernels ## build/gpu-bundle.tar: the proof for a machine with an NVIDIA GPU, one command there
	@lab/gpu/bundle

lab: kernels ## the PCI path in a virtual machine: IOMMUFD on a kernel built for it, type1 on Debian's
	@GO="$(GO)" lab/vm/lab.sh test

lab-arm: kernels ## what of that is no PC's, in a machine with an Arm CPU and pages of 64 KiB
	@GO="$(GO)" LANEFS_LAB_ARCH=arm64 lab/vm/lab.sh test

lab-bench: kernels ## in that machine, a block device through lanes beside pread with O_DIRECT: null_blk and scsi_debug, at once and after 30 µs
	@GO="$(GO)" lab/vm/lab.sh bench

lab-shell: kernels ## a prompt in that machine
	@GO="$(GO)" lab/vm/lab.sh shell

clean:
	@rm -rf lanefs build
