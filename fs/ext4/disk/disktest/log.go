package disktest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
)

// Logger calls f with each line that is logged: the message, then the attributes as key=value, unquoted.
func Logger(f func(line string)) *slog.Logger { return slog.New(lines{f: f}) }

type lines struct {
	f     func(string)
	attrs []slog.Attr
}

func (l lines) Enabled(context.Context, slog.Level) bool { return true }

func (l lines) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(r.Message)
	add := func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
		return true
	}
	for _, a := range l.attrs {
		add(a)
	}
	r.Attrs(add)
	l.f(b.String())
	return nil
}

func (l lines) WithAttrs(attrs []slog.Attr) slog.Handler {
	return lines{l.f, append(slices.Clip(l.attrs), attrs...)}
}

func (l lines) WithGroup(string) slog.Handler { return l }
