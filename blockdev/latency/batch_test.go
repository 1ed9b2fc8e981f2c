package latency

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What goes by way of a batch is counted as what is added by itself.
func TestBatch(t *testing.T) {
	one, many := NewLayer("test", "first", "second"), NewLayer("test", "first", "second")
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		var b Batch
		for range r.IntN(70) {
			kind, d := r.IntN(8)/7, time.Duration(r.Int64N(1<<(3+r.Int64N(30))))-1
			one.Add(kind, d)
			many.AddTo(&b, kind, d)
		}
		b.End()
		b.End()
	}
	require.Equal(t, one.Summaries(), many.Summaries())
	var nothing *Layer
	var b Batch
	nothing.AddTo(&b, 0, 1)
	b.End()
}
