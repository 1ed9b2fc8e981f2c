/*
 * Run by a test of cmd/lanefs: testhip FILE OTHER, files of the same bytes as test.c's, with memory of an AMD GPU: device memory, pinned memory,
 * streams, memory that was freed while it was registered. Prints "ok".
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hipfile.h"

#define WANT(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #x, errno, strerror(errno)); exit(1); } } while (0)
#define IS(want, call) do { hipFileError_t e_ = (call); if (e_.err != (want)) { fprintf(stderr, "%s:%d: %s: %d %s\n", __FILE__, __LINE__, #call, (int)e_.err, hipFileGetOpErrorString(e_.err)); exit(1); } } while (0)
#define OK(call) IS(hipFileSuccess, call)

enum { DEFAULT = 4, NON_BLOCKING = 1 };

static struct {
	int (*set)(int), (*malloc)(void **, size_t), (*free)(void *), (*pinned)(void **, size_t, unsigned), (*create)(void **, unsigned), (*sync)(void *);
	int (*copy)(void *, const void *, size_t, int, void *);
} hip;

static void load(void)
{
	void *lib = dlopen("libamdhip64.so.7", RTLD_NOW);
	WANT(lib);
	*(void **)&hip.set = dlsym(lib, "hipSetDevice");
	*(void **)&hip.malloc = dlsym(lib, "hipMalloc");
	*(void **)&hip.free = dlsym(lib, "hipFree");
	*(void **)&hip.pinned = dlsym(lib, "hipHostMalloc");
	*(void **)&hip.create = dlsym(lib, "hipStreamCreateWithFlags");
	*(void **)&hip.sync = dlsym(lib, "hipStreamSynchronize");
	*(void **)&hip.copy = dlsym(lib, "hipMemcpyAsync");
}

static unsigned char *host; /* pinned, 2 * size */
static size_t size;
static void *stream;

static void fetch(const void *device, size_t n) { WANT(hip.copy(host, device, n, DEFAULT, stream) == 0 && hip.sync(stream) == 0); }
static void store(void *device, size_t n) { WANT(hip.copy(device, host, n, DEFAULT, stream) == 0 && hip.sync(stream) == 0); }

static int right(const unsigned char *p, uint64_t off, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		if (p[i] != (off + i) % 251)
			return 0;
	return 1;
}

static void moves(const char *path)
{
	hipFileDescr_t d = {.type = hipFileHandleTypeOpaqueFD};
	hipFileHandle_t h;
	unsigned char *m;
	int fd = open(path, O_RDWR);
	WANT(fd >= 0 && hip.malloc((void **)&m, 2 * size) == 0);
	d.handle.fd = fd;
	OK(hipFileHandleRegister(&h, &d));
	OK(hipFileBufRegister(m, 2 * size, 0));
	memset(host, 'x', 2 * size);
	store(m, 2 * size);
	WANT(hipFileRead(h, m, size + 100, 0, 5) == (ssize_t)size);
	fetch(m, size + 200);
	WANT(host[4] == 'x' && right(host + 5, 0, size) && host[size + 5] == 'x');
	for (size_t n = 1; n < 200000; n = n * 11 + 1) {
		WANT(hipFileRead(h, m, n, (off_t)(n * 7), 3) == (ssize_t)n);
		fetch(m, n + 3);
		WANT(right(host + 3, n * 7, n));
	}
	WANT(hipFileRead(h, m, size, 0, (off_t)size + 1) == -hipFileInvalidMappingRange);
	for (size_t i = 0; i < 100000; i++)
		host[i] = (unsigned char)~((i + 777) % 251);
	store(m, 100000);
	WANT(hipFileWrite(h, m, 100000, 777, 0) == 100000);
	unsigned char *back = malloc(size);
	WANT(back && pread(fd, back, 100000, 777) == 100000 && memcmp(back, host, 100000) == 0);
	for (size_t i = 0; i < size; i++)
		back[i] = (unsigned char)(i % 251);
	WANT(pwrite(fd, back, size, 0) == (ssize_t)size);
	WANT(hipFileRead(h, host, 5000, 123, 1) == 5000 && right(host + 1, 123, 5000)); /* pinned */
	WANT(hipFileRead(h, back, 5000, 321, 1) == 5000 && right(back + 1, 321, 5000)); /* plain */

	/* In the stream's order: what it is told by address is what is there when the stream has come so far. */
	size_t n = 50000;
	off_t offset = 999, at = 17;
	ssize_t got = 0;
	OK(hipFileStreamRegister(stream, 0));
	memset(host, 'y', 2 * size);
	for (int i = 0; i < 5; i++)
		WANT(hip.copy(m, host, 2 * size, DEFAULT, stream) == 0);
	OK(hipFileReadAsync(h, m, &n, &offset, &at, &got, stream));
	WANT(hip.copy(host, m, n + 100, DEFAULT, stream) == 0 && hip.sync(stream) == 0);
	WANT(got == 50000 && host[16] == 'y' && right(host + 17, 999, n) && host[17 + n] == 'y');
	store(m, 100);
	OK(hipFileWriteAsync(h, m, &n, &offset, &at, &got, stream));
	WANT(hip.sync(stream) == 0 && got == 50000 && hipFileRead(h, back, size, 0, 0) == (ssize_t)size && right(back, 0, size));
	/* With all values known the call is put on the stream, and returns. */
	OK(hipFileStreamRegister(stream, HIPFILE_STREAM_FLAGS_MASK));
	memset(host, 'z', 2 * size);
	WANT(hip.copy(m, host, 2 * size, DEFAULT, stream) == 0);
	OK(hipFileReadAsync(h, m, &n, &offset, &at, &got, stream));
	WANT(hip.copy(host, m, n + 100, DEFAULT, stream) == 0 && hip.sync(stream) == 0);
	WANT(got == 50000 && host[16] == 'z' && right(host + 17, 999, n) && host[17 + n] == 'z');
	OK(hipFileWriteAsync(h, m, &n, &offset, &at, &got, stream));
	WANT(hip.sync(stream) == 0 && got == 50000 && hipFileRead(h, back, size, 0, 0) == (ssize_t)size && right(back, 0, size));
	offset = (off_t)size - 10;
	OK(hipFileReadAsync(h, m, &n, &offset, &at, &got, stream));
	WANT(hip.copy(host, m, 100, DEFAULT, stream) == 0 && hip.sync(stream) == 0 && got == 10 && right(host + 17, size - 10, 10) && host[27] == (unsigned char)((999 + 10) % 251));
	OK(hipFileStreamDeregister(stream));

	/* A batch of both kinds of memory. */
	hipFileBatchHandle_t b;
	hipFileIOEvents_t e[8];
	hipFileIOParams_t p[8];
	unsigned k = 8;
	memset(p, 0, sizeof p);
	for (int i = 0; i < 8; i++) {
		p[i] = (hipFileIOParams_t){.mode = hipFileBatch, .fh = h, .opcode = hipFileBatchRead, .cookie = &p[i]};
		p[i].u.batch.devPtr_base = i % 2 ? (void *)m : (void *)back;
		p[i].u.batch.devPtr_offset = i * 1000;
		p[i].u.batch.file_offset = i * 5003;
		p[i].u.batch.size = 1000;
	}
	OK(hipFileBatchIOSetUp(&b, 8));
	OK(hipFileBatchIOSubmit(b, 8, p, 0));
	OK(hipFileBatchIOGetStatus(b, 8, &k, e, NULL));
	fetch(m, 8000);
	for (unsigned i = 0; i < 8; i++)
		WANT(k == 8 && e[i].status == hipFileComplete && e[i].ret == 1000 && right((i % 2 ? host : back) + i * 1000, i * 5003, 1000));
	hipFileBatchIODestroy(b);

	/* Freed while it is registered. */
	WANT(hip.free(m) == 0);
	WANT(hipFileRead(h, m, 1000, 0, 0) == -hipFileHipPointerInvalid && hipFileWrite(h, m, 1000, 0, 0) == -hipFileHipPointerInvalid);
	OK(hipFileBufDeregister(m));
	IS(hipFileHipPointerInvalid, hipFileBufRegister(m, 1000, 0));
	WANT(pread(fd, back, size, 0) == (ssize_t)size && right(back, 0, size));
	hipFileHandleDeregister(h);
	close(fd);
	free(back);
}

int main(int argc, char **argv)
{
	struct stat st;
	unsigned major = 9, minor = 9;
	hipFileDriverProps_t props;
	WANT(argc == 3 && stat(argv[1], &st) == 0);
	size = (size_t)st.st_size;
	load();
	int (*init)(unsigned) = (int (*)(unsigned))dlsym(dlopen("libamdhip64.so.7", RTLD_NOW), "hipInit");
	WANT(init && init(0) == 0 && hip.set(0) == 0 && hip.pinned((void **)&host, 2 * size, 0) == 0 && hip.create(&stream, NON_BLOCKING) == 0);
	OK(hipFileDriverOpen());
	WANT(hipFileUseCount() == 1);
	OK(hipFileGetVersion(&major, &minor, NULL));
	WANT(major == HIPFILE_VERSION_MAJOR && minor == HIPFILE_VERSION_MINOR);
	OK(hipFileDriverGetProperties(&props));
	WANT(props.feature_flags & 1u << hipFileBatchIOSupported);
	moves(argv[1]);
	moves(argv[2]);
	OK(hipFileDriverClose());
	IS(hipFileDriverNotInitialized, hipFileDriverClose());
	puts("ok");
	return 0;
}
