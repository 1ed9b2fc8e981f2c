/* Test of lanefs_mpi.h, each rank of a communicator on one mount: mpirun testmpi FILE. It says "ok", and when the daemon has ended "gone". Run by the Go test in ctest. */
#include <mpi.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lanefs.h"

static unsigned long long read_bytes; /* by this rank */
static int fails, once;               /* this rank's reads fail with it; once: only the next */

static int64_t counted(lanefs_stage *st, uint32_t file, void *memory, uint64_t offset, uint64_t length, void *stream);
#define LANEFS_MPI_CHUNK (256 << 10)
#define LANEFS_MPI_READ counted
#include "lanefs_mpi.h"

static int64_t counted(lanefs_stage *st, uint32_t file, void *memory, uint64_t offset, uint64_t length, void *stream)
{
	read_bytes += length;
	if (fails) {
		errno = fails > 0 ? fails : 0;
		if (once)
			fails = 0;
		return -1;
	}
	return lanefs_read_into(st, file, memory, offset, length, stream);
}

static int rank, synced;

static int sync_fails(void *stream) { return stream == NULL; }

static int sync_of(void *stream)
{
	(void)stream;
	synced++;
	return 0;
}

#define CHECK(condition) do { if (!(condition)) { \
	fprintf(stderr, "rank %d: %s:%d: %s: errno %d, %s\n", rank, __FILE__, __LINE__, #condition, errno, lanefs_error()); \
	MPI_Abort(MPI_COMM_WORLD, 1); } } while (0)

int main(int argc, char **argv)
{
	MPI_Comm comm = MPI_COMM_WORLD;
	int ranks, fd, i, bcast, status;
	unsigned long long all;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(comm, &rank);
	MPI_Comm_size(comm, &ranks);
	fd = open(argv[1], O_RDONLY);
	CHECK(fd >= 0);
	uint64_t size = (uint64_t)lseek(fd, 0, SEEK_END);
	char *want = malloc(size), *got = malloc(size + 8192);
	CHECK(pread(fd, want, size, 0) == (ssize_t)size);
	lanefs *s = lanefs_connect(fd);
	CHECK(s);
	lanefs_stage *st = lanefs_stage_new(s, 0);
	CHECK(st);
	uint32_t file;
	CHECK(!lanefs_open(s, fd, &file));

	struct { uint64_t offset, length; } cases[] = {{0, size}, {1, size - 1}, {4095, 1 << 20}, {77, 1}, {5, 0}, {size - 10, 10}, {size - 10, 8000}, {size - 10, 1 << 20}, {size, 5}, {0, size + 8192}};
	for (bcast = 0; bcast < 2; bcast++)
		for (i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
			uint64_t o = cases[i].offset, n = cases[i].length, there = o + n > size ? size - o : n;
			memset(got, 7, size + 8192);
			read_bytes = 0;
			int64_t r = bcast ? lanefs_mpi_bcast(rank ? NULL : st, rank ? 0 : file, got, o, n, NULL, NULL, 0, comm)
					  : lanefs_mpi_allgather(st, file, got, o, n, NULL, sync_of, comm);
			CHECK(r == (int64_t)there);
			CHECK(!memcmp(got, want + o, there));
			CHECK(n == size + 8192 || got[n] == 7);
			MPI_Allreduce(&read_bytes, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, comm);
			CHECK(all == n); /* the file is read once */
		}
	CHECK(synced);

	/* One rank's fault is everybody's error, and the communicator goes on. */
	CHECK(lanefs_mpi_allgather(st, rank ? 999 : file, got, 0, size, NULL, NULL, comm) == -1 && errno == EBADF);
	fails = rank == 0 ? ENOSPC : 0;
	CHECK(lanefs_mpi_allgather(st, file, got, 0, size, NULL, NULL, comm) == -1 && errno == ENOSPC);
	CHECK(lanefs_mpi_bcast(st, file, got, 0, size, NULL, NULL, 0, comm) == -1 && errno == ENOSPC);
	fails = 0;
	CHECK(lanefs_mpi_allgather(st, file, got, (uint64_t)rank, 100, NULL, NULL, comm) == -1 && errno == EINVAL);
	CHECK(lanefs_mpi_allgather(st, file, got, 0, 100 + (uint64_t)rank, NULL, NULL, comm) == -1 && errno == EINVAL);
	CHECK(lanefs_mpi_bcast(st, file, got, 0, 100, NULL, NULL, rank, comm) == -1 && errno == EINVAL);
	CHECK(lanefs_mpi_bcast(st, file, got, 0, 100, NULL, NULL, ranks, comm) == -1 && errno == EINVAL);
	CHECK(lanefs_mpi_allgather(st, file, got, UINT64_MAX, 100, NULL, NULL, comm) == -1 && errno == EINVAL);
	CHECK(lanefs_mpi_allgather(st, file, got, 0, size, NULL, NULL, comm) == (int64_t)size && !memcmp(got, want, size));
	once = 1; /* what is read after it does not make it good */
	fails = rank == 0 ? ENOSPC : 0;
	CHECK(lanefs_mpi_allgather(st, file, got, 0, size, NULL, NULL, comm) == -1 && errno == ENOSPC);
	fails = rank == 0 ? ENOSPC : 0;
	CHECK(lanefs_mpi_bcast(st, file, got, 0, size, NULL, NULL, 0, comm) == -1 && errno == ENOSPC);
	once = 0;
	fails = -1; /* an error without a number is one, too */
	CHECK(lanefs_mpi_allgather(st, file, got, 0, size, NULL, NULL, comm) == -1 && errno == EIO);
	fails = 0;
	CHECK(lanefs_mpi_allgather(st, file, got, 0, size, NULL, rank ? sync_fails : sync_of, comm) == -1 && errno == EIO);

	/* What a child has of its parent is nothing: an error, and nobody else's session. */
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0)
		_exit(lanefs_read_into(st, file, got, 0, 100, NULL) != -1 || errno != EPERM);
	CHECK(waitpid(child, &status, 0) == child && status == 0);

	/* The daemon ends while all read: what they have is right, or all fail. */
	close(fd);
	MPI_Barrier(comm);
	if (rank == 0) {
		printf("ok, %d ranks\n", ranks);
		fflush(stdout);
	}
	for (;;) {
		memset(got, 7, size);
		int64_t r = lanefs_mpi_allgather(st, file, got, 0, size, NULL, NULL, comm);
		if (r < 0)
			break;
		CHECK(r == (int64_t)size && !memcmp(got, want, size));
	}
	CHECK(errno == ECONNRESET || errno == ESHUTDOWN); /* the connection has ended, or is about to */
	CHECK(lanefs_mpi_allgather(st, file, got, 0, size, NULL, NULL, comm) == -1 && (errno == ECONNRESET || errno == ESHUTDOWN));
	CHECK(lanefs_mpi_bcast(st, file, got, 0, size, NULL, NULL, ranks - 1, comm) == -1 && (errno == ECONNRESET || errno == ESHUTDOWN));
	lanefs_stage_free(st);
	lanefs_close(s);
	MPI_Barrier(comm);
	if (rank == 0)
		printf("gone\n");
	MPI_Finalize();
	return 0;
}
