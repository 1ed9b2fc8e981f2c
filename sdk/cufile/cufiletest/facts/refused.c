/* Calls functions of libcufile by the names that it is given, and prints the error of each. What is not done looks at none of its arguments. */
#include <dlfcn.h>
#include <stdio.h>

#include "cufile.h"

int main(int argc, char **argv)
{
	void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
	for (int i = 2; library && i < argc; i++) {
		CUfileError_t (*call)(long, long, long, long, long, long);
		*(void **)&call = dlsym(library, argv[i]);
		CUfileError_t e = call ? call(0, 0, 0, 0, 0, 0) : (CUfileError_t){-1, 0};
		printf("%d %d %s\n", (int)e.err, (int)e.cu_err, argv[i]);
	}
	return !library;
}
