/* The sum of a file's bytes, by way of device memory: cc example.c -llanefs */
#include <fcntl.h>
#include <lanefs.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	int fd = argc == 2 ? open(argv[1], O_RDONLY) : -1;
	if (fd < 0)
		return fprintf(stderr, "want a FILE that can be read\n"), 2;
	lanefs *s = lanefs_connect(fd);
	struct lanefs_buffer b;
	if (!s || lanefs_map(s, fd, 0, 0, 0, &b))
		return fprintf(stderr, "%s: %s\n", argv[1], lanefs_error()), 1;
	unsigned long sum = 0;
	for (size_t i = 0; b.data && i < b.size; i++)
		sum += ((unsigned char *)b.data)[i];
	printf("%zu bytes in memory of the %s runtime, sum %lu, %s\n", b.size, lanefs_facts(s)->runtime, sum,
	       lanefs_latest(s, &b) == b.generation ? "current" : "changed meanwhile");
	lanefs_unmap(s, &b);
	lanefs_close(s);
	return 0;
}
