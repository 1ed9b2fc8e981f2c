// Package schedidle has threads that answer programs wait with the policy SCHED_IDLE, so that the kernel wakes a program on the CPU on which it
// waits, and not on another one that it must wake first.
//
// A thread that answers a program still runs when the kernel wakes that. So the program's CPU is busy, and the kernel puts the program on a CPU that
// stands idle, if there is one (select_idle_sibling in kernel/sched/fair.c): it sends an interrupt to a CPU that has halted, which on a virtual machine
// costs more than the request, and the program's next request goes to that CPU's queue. So program and requests go to and fro. But a CPU on which
// all that runs is SCHED_IDLE counts as idle (sched_idle_cpu): then the program stays, and runs as soon as the thread waits.
//
// The price: beside a program that computes, a thread with SCHED_IDLE gets three thousandths of its CPU. Whatever waits for it waits, too: programs,
// whoever wants a lock that it holds, Go's garbage collector, which stops all threads. So
//
//   - only threads with many requests have the policy (manyIn): for others there is little to win;
//   - a guard looks every [Lap] what each of them has done, and gives those that did little while a request waited their old policy back. It runs as
//     no Go code can that waits for the garbage collector: see run;
//   - a thread that others than the program have kept from running, as the kernel counts it (schedstat), goes without for a while, and so does its CPU: at
//     first for [firstPause], and when it happens again soon after for twice as long, [longestPause] at most. That ends sooner if its threads, without the policy, run when they want to: see resume.
//
// So who starts to compute beside a mount delays its requests by two or three laps, a few times.
//
// Sources: sched(7), sched_setscheduler(2), getrlimit(2) (RLIMIT_NICE), user_check_sched_setscheduler in kernel/sched/syscalls.c (who may leave SCHED_IDLE), Documentation/scheduler/sched-stats.rst
// (/proc/PID/schedstat). Linux 6.14 to 6.18.
package schedidle
