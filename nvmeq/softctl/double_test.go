package softctl

import (
	"io"
	"log/slog"

	"github.com/lanefs/lanefs/gpu"
)

type mover struct{}

func (mover) Read(dst []byte, m gpu.Memory, off int64) error {
	copy(dst, m.(*memory).b[off:])
	return nil
}

func (mover) Write(m gpu.Memory, off int64, src []byte) error {
	copy(m.(*memory).b[off:], src)
	return nil
}

func textLog(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
