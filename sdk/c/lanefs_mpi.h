/*
 * Reads of LaneFS that end in MPI: N ranks get a range of a file, and the file is read once. Header only: include it after mpi.h, and link with
 * -llanefs. Memory is that of the CPU, or a GPU's where the MPI takes that (CUDA-aware).
 *
 * All ranks of a communicator call a function with the same offset and length, as with MPI's collectives, whatever file handle and memory they have
 * of their own. All of them get the same result: a rank whose read fails goes on with the collective calls, and all fail at the end, so that none waits.
 * What MPI itself fails ends the program, or fails with EIO, as the communicator's error handler says.
 */
#ifndef LANEFS_MPI_H
#define LANEFS_MPI_H

#include <errno.h>
#include <limits.h>
#include <mpi.h>
#include <stdlib.h>

#include "lanefs.h"

#ifndef LANEFS_MPI_CHUNK
#define LANEFS_MPI_CHUNK (256 << 20) /* bytes of the file: while one chunk is exchanged the next is read */
#endif
#ifndef LANEFS_MPI_READ
#define LANEFS_MPI_READ lanefs_read_into /* what a test may put something before */
#endif

/* Waits for a stream: (lanefs_mpi_sync)cudaStreamSynchronize, hipStreamSynchronize; NULL for memory of the CPU. 0 is success. */
typedef int (*lanefs_mpi_sync)(void *stream);

/* The lowest offset that a rank found missing, and the highest errno, of all ranks. */
static inline int64_t lanefs_mpi_end_(int err, uint64_t end, MPI_Comm comm)
{
	uint64_t mine[2] = {(uint64_t)err, ~end}, all[2];

	if (MPI_Allreduce(mine, all, 2, MPI_UINT64_T, MPI_MAX, comm) != MPI_SUCCESS)
		all[0] = EIO;
	if (all[0]) {
		errno = (int)all[0];
		return -1;
	}
	return (int64_t)~all[1];
}

/* Whether all ranks mean the same range, and none has failed. */
static inline int lanefs_mpi_begin_(int err, uint64_t offset, uint64_t length, int root, MPI_Comm comm)
{
	uint64_t mine[7] = {(uint64_t)err, offset, ~offset, length, ~length, (uint64_t)(root + 1), ~(uint64_t)(root + 1)}, all[7];
	int i;

	if (MPI_Allreduce(mine, all, 7, MPI_UINT64_T, MPI_MAX, comm) != MPI_SUCCESS)
		all[0] = EIO;
	for (i = 1; !all[0] && i < 7; i += 2)
		if (all[i] != ~all[i + 1])
			all[0] = EINVAL;
	errno = (int)all[0];
	return all[0] ? -1 : 0;
}

/* One rank's read. Stores the offset in the range at which the file ends, if it does. */
static inline int lanefs_mpi_part_(lanefs_stage *st, uint32_t file, char *memory, uint64_t offset, uint64_t at, uint64_t length, void *stream,
				   lanefs_mpi_sync sync, uint64_t *end)
{
	int64_t got = LANEFS_MPI_READ(st, file, memory + at, offset + at, length, stream);

	if (got < 0)
		return errno ? errno : EIO;
	if ((uint64_t)got < length && at + (uint64_t)got < *end)
		*end = at + (uint64_t)got;
	return sync && sync(stream) ? EIO : 0;
}

/*
 * Reads length bytes at offset of a file into memory of every rank: each rank reads its part of every chunk, and MPI_Iallgatherv brings the rest. Returns how
 * many bytes, fewer than length only at the end of the file, the same for all ranks; or -1 with errno: EINVAL if the ranks' ranges differ or there is no
 * such range; of several ranks' errors the highest. stream and sync are those of the memory's GPU; NULL and NULL for the CPU's. When it returns
 * the bytes are there.
 */
static inline int64_t lanefs_mpi_allgather(lanefs_stage *st, uint32_t file, void *memory, uint64_t offset, uint64_t length, void *stream,
					   lanefs_mpi_sync sync, MPI_Comm comm)
{
	MPI_Request request = MPI_REQUEST_NULL;
	uint64_t at, part, end = length;
	int ranks, rank, r, *counts, err, code;

	MPI_Comm_size(comm, &ranks);
	MPI_Comm_rank(comm, &rank);
	/* Two sets: MPI may look at those of a call that is under way. */
	counts = (int *)malloc(4 * sizeof(int) * (size_t)ranks);
	err = !counts ? ENOMEM : offset + length < offset || offset + length > INT64_MAX ? EINVAL : 0;
	if (lanefs_mpi_begin_(err, offset, length, -1, comm)) {
		err = errno;
		free(counts);
		errno = err;
		return -1;
	}
	for (at = 0, r = 0; at < length; at += LANEFS_MPI_CHUNK, r ^= 1) {
		uint64_t n = length - at < LANEFS_MPI_CHUNK ? length - at : LANEFS_MPI_CHUNK;
		int i, *count = counts + 2 * r * ranks, *begin = count + ranks;

		part = ((n + (uint64_t)ranks - 1) / (uint64_t)ranks + 4095) & ~(uint64_t)4095;
		for (i = 0; i < ranks; i++) {
			uint64_t low = (uint64_t)i * part < n ? (uint64_t)i * part : n;
			begin[i] = (int)low;
			count[i] = (int)(n - low < part ? n - low : part);
		}
		if (!err && count[rank])
			err = lanefs_mpi_part_(st, file, (char *)memory, offset, at + (uint64_t)begin[rank], (uint64_t)count[rank], stream, sync, &end);
		code = MPI_Wait(&request, MPI_STATUS_IGNORE); /* the last chunk's, while this one was read */
		if (code == MPI_SUCCESS)
			code = MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, (char *)memory + at, count, begin, MPI_BYTE, comm, &request);
		if (code != MPI_SUCCESS && !err)
			err = EIO;
	}
	if (MPI_Wait(&request, MPI_STATUS_IGNORE) != MPI_SUCCESS && !err)
		err = EIO;
	free(counts);
	return lanefs_mpi_end_(err, end, comm);
}

/*
 * The same by MPI_Ibcast: root reads all, and the others' stage and file are not looked at (NULL, 0). For a file that only one rank can reach.
 */
static inline int64_t lanefs_mpi_bcast(lanefs_stage *st, uint32_t file, void *memory, uint64_t offset, uint64_t length, void *stream,
				       lanefs_mpi_sync sync, int root, MPI_Comm comm)
{
	MPI_Request request = MPI_REQUEST_NULL;
	uint64_t at, end = length;
	int ranks, rank, err, code;

	MPI_Comm_size(comm, &ranks);
	MPI_Comm_rank(comm, &rank);
	err = root < 0 || root >= ranks || offset + length < offset || offset + length > INT64_MAX ? EINVAL : 0;
	if (lanefs_mpi_begin_(err, offset, length, root, comm))
		return -1;
	for (at = 0; at < length; at += LANEFS_MPI_CHUNK) {
		uint64_t n = length - at < LANEFS_MPI_CHUNK ? length - at : LANEFS_MPI_CHUNK;

		if (!err && rank == root)
			err = lanefs_mpi_part_(st, file, (char *)memory, offset, at, n, stream, sync, &end);
		code = MPI_Wait(&request, MPI_STATUS_IGNORE);
		if (code == MPI_SUCCESS)
			code = MPI_Ibcast((char *)memory + at, (int)n, MPI_BYTE, root, comm, &request);
		if (code != MPI_SUCCESS && !err)
			err = EIO;
	}
	if (MPI_Wait(&request, MPI_STATUS_IGNORE) != MPI_SUCCESS && !err)
		err = EIO;
	return lanefs_mpi_end_(err, end, comm);
}

#endif
