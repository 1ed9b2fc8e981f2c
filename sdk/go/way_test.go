package lanefs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOneRule: the C library decides as this package does. Its rule is compiled, and asked beside ours, on both sides of every limit.
func TestOneRule(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("needs cc: apt-get install --no-install-recommends gcc libc6-dev")
	}
	copies := []int64{1, wayFew - 1, wayFew, wayFew + 1, wayMany - 1, wayMany, wayMany + 1, 1024}
	sizes := []int64{0, 1, wayEachByte - 1, wayEachByte, 4096, 1 << 20, 1 << 30}
	for _, n := range copies {
		sizes = append(sizes, n*wayLarge-1, n*wayLarge, n*wayLarge+1)
	}
	delays := []int64{-1, 0, 1}
	dir := t.TempDir()
	program := filepath.Join(dir, "rule")
	var numbers, ours strings.Builder
	fmt.Fprintln(&ours, int64(wayWhile))
	for _, size := range sizes {
		for _, n := range copies {
			for late := range 2 {
				fmt.Fprintf(&numbers, "%d %d %d\n", n, size, late)
				fmt.Fprintln(&ours, byKernel(n, size, late == 1))
			}
		}
		for _, d := range delays {
			ns := int64(wayLate) + size/wayEachByte + d
			fmt.Fprintf(&numbers, "0 %d %d\n", size, ns)
			fmt.Fprintln(&ours, wasLate(time.Duration(ns), size))
		}
	}
	require.NoError(t, os.WriteFile(program+".c", []byte(`#include <stdio.h>
#include "way.h"
int main(void)
{
	unsigned long long n, bytes, last;
	printf("%lld\n", (long long)WHILE);
	while (scanf("%llu %llu %llu", &n, &bytes, &last) == 3)
		puts((n ? by_kernel(n, bytes, last != 0) : was_late(last, bytes)) ? "true" : "false");
	return 0;
}
`), 0o600))
	out, err := exec.Command(cc, "-std=c11", "-Wall", "-Wextra", "-Werror", "-I../c", "-o", program, program+".c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	cmd := exec.Command(program)
	cmd.Stdin = strings.NewReader(numbers.String())
	out, err = cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, ours.String(), string(out))
}
