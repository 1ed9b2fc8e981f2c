package thread

// Operations of futex(2) for a word that one process has (linux/futex.h): FUTEX_WAIT and FUTEX_WAKE, both with FUTEX_PRIVATE_FLAG.
const (
	FutexWait = 0 | 128
	FutexWake = 1 | 128
)
