// Package metrics serves a mount's counters to Prometheus. A Page is one reading of them; Serve answers HTTP requests for it at an
// address or a socket. Names follow Prometheus's conventions: base units, _total for what only grows.
package metrics

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev/latency"
)

// Server answers scrapes until Close.
type Server struct {
	http http.Server
	l    net.Listener
	path string // of the socket; "" for an address
}

const (
	headerTimeout = 10 * time.Second
	scrapeTimeout = time.Minute
	idleTimeout   = 5 * time.Minute
	maxHeader     = 16 << 10
	maxScrapes    = 4 // at once: the rest are refused
)

// Serve listens at where: HOST:PORT, or the absolute path of a unix socket, and answers /metrics with the pages that read makes. labels
// are on every series. A socket that a dead daemon has left is replaced; one that answers is not.
func Serve(where string, labels map[string]string, read func() (*Page, error), log *slog.Logger) (*Server, error) {
	s := &Server{}
	network := "tcp"
	if strings.HasPrefix(where, "/") {
		network, s.path = "unix", where
		if err := removeStale(where); err != nil {
			return nil, fmt.Errorf("metrics at %q: %w", where, err)
		}
	}
	var err error
	if s.l, err = net.Listen(network, where); err != nil {
		return nil, fmt.Errorf("metrics=%s: %w; name an address that is free, such as localhost:9123, or the path of a socket", where, err)
	}
	if s.path != "" {
		if err := os.Chmod(s.path, 0o660); err != nil {
			return nil, errors.Join(fmt.Errorf("metrics at %q: %w", where, err), s.l.Close())
		}
	}
	reg := prometheus.NewRegistry()
	with := prometheus.WrapRegistererWith(labels, reg)
	with.MustRegister(collector{read}, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector())
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout,
	}))
	s.http = http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout, WriteTimeout: scrapeTimeout + headerTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	go func() {
		if err := s.http.Serve(s.l); !errors.Is(err, http.ErrServerClosed) {
			log.Warn("metrics are no longer served until the next mount", "at", where, "error", err.Error())
		}
	}()
	return s, nil
}

// Addr is where the server listens.
func (s *Server) Addr() string { return s.l.Addr().String() }

// Close ends the server and its connections, and removes its socket before it returns. It may be called for nil.
func (s *Server) Close() error {
	if s == nil {
		return nil
	}
	err := s.http.Close()
	// The listener removes its socket. A server that has not begun to accept does not know its listener, and would close it later.
	if e := s.l.Close(); !errors.Is(e, net.ErrClosed) {
		err = errors.Join(err, e)
	}
	return err
}

// removeStale removes a socket that nobody listens to.
func removeStale(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode()&os.ModeSocket == 0 {
		return errors.New("there is a file that is not a socket; name another path")
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
		return errors.New("another program listens there; name another path")
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// collector makes one page for each scrape.
type collector struct{ read func() (*Page, error) }

// Describe describes nothing: which series there are is known when they are read.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends a page.
func (c collector) Collect(out chan<- prometheus.Metric) {
	p, err := c.read()
	if err != nil {
		out <- prometheus.NewInvalidMetric(prometheus.NewDesc("lanefs_error", "The mount's counters cannot be read.", nil, nil), err)
		return
	}
	for _, m := range p.all {
		out <- m
	}
}

// Page is one reading.
type Page struct{ all []prometheus.Metric }

func (p *Page) add(kind prometheus.ValueType, name, help string, value float64, labels []string) {
	names, values := split(labels)
	p.all = append(p.all, prometheus.MustNewConstMetric(prometheus.NewDesc("lanefs_"+name, help, names, nil), kind, value, values...))
}

// Counter adds a number that only grows. labels are names and values in turn.
func (p *Page) Counter(name, help string, value float64, labels ...string) {
	p.add(prometheus.CounterValue, name, help, value, labels)
}

// Gauge adds a number that goes up and down.
func (p *Page) Gauge(name, help string, value float64, labels ...string) {
	p.add(prometheus.GaugeValue, name, help, value, labels)
}

// Histograms adds a histogram of seconds for each summary, with the labels layer and kind.
func (p *Page) Histograms(name, help string, all []latency.Summary) {
	d := prometheus.NewDesc("lanefs_"+name, help, []string{"layer", "kind"}, nil)
	for _, s := range all {
		buckets := make(map[float64]uint64, len(s.Buckets))
		for i, n := range s.Buckets {
			buckets[latency.Bounds[i].Seconds()] = n
		}
		p.all = append(p.all, prometheus.MustNewConstHistogram(d, s.Count, s.Sum.Seconds(), buckets, s.Layer, s.Kind))
	}
}

func split(labels []string) (names, values []string) {
	for i := 0; i+1 < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	return names, values
}
