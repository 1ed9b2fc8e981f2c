package slowest

import (
	"bytes"
	"context"
	"runtime/trace"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev/latency"
)

// TestFind: of several requests the slowest is found, with its steps and where its time went; what is no request is left out.
func TestFind(t *testing.T) {
	if trace.IsEnabled() {
		t.Skip("the tests are traced already")
	}
	fuse, device := latency.NewLayer("fuse", "read", "write"), latency.NewLayer("device", "read")
	var b bytes.Buffer
	require.NoError(t, trace.Start(&b))
	done := make(chan struct{})
	go func() {
		defer close(done)
		device.Start(0).End() // nobody's request
		for range 5 {
			op := fuse.Start(0)
			device.Start(0).End()
			op.End()
		}
		slow := fuse.Start(1)
		below := device.Start(0)
		time.Sleep(20 * time.Millisecond)
		trace.Logf(context.Background(), "command", "queue %d", 7)
		below.End()
		slow.End()
	}()
	<-done
	trace.Stop()
	f, err := Find(bytes.NewReader(b.Bytes()))
	require.NoError(t, err)
	require.Equal(t, 6, f.Requests)
	r := f.Slowest
	require.Equal(t, "fuse write", r.Name)
	require.GreaterOrEqual(t, r.Took, 20*time.Millisecond)
	require.Equal(t, []string{"fuse write", "device read", "queue 7"}, []string{r.Steps[0].Name, r.Steps[1].Name, r.Steps[2].Name})
	require.Equal(t, []int{0, 1, 2}, []int{r.Steps[0].Depth, r.Steps[1].Depth, r.Steps[2].Depth})
	require.Contains(t, r.States[0].Name, "sleep")
	var sum time.Duration
	for _, s := range r.States {
		sum += s.Took
	}
	require.InDelta(t, float64(r.Took), float64(sum), float64(time.Millisecond))
	var out strings.Builder
	r.Print(&out)
	require.Contains(t, out.String(), "fuse write")
	require.Contains(t, out.String(), "waiting (sleep)")
	_, err = Find(strings.NewReader("no trace"))
	require.Error(t, err)
}
