package controller_test

import (
	"os"
	"testing"

	"github.com/lanefs/lanefs/lab/rocm"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
)

func TestMain(m *testing.M) { os.Exit(testrig.Main(m, rocm.Use, rocm.Clean)) }
