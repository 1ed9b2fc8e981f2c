package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// scrape reads a page of metrics from a socket.
func scrape(t *testing.T, socket string) string {
	c := http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", socket)
	}}}
	defer c.CloseIdleConnections()
	r, err := c.Get("http://lanefs/metrics")
	require.NoError(t, err)
	defer r.Body.Close()
	page, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, r.StatusCode, "%s", page)
	return string(page)
}

// TestMetrics: the page has what the mount did; promtool finds nothing against its names; a stale socket is replaced, another program's is not.
func TestMetrics(t *testing.T) {
	p := newPlace(t)
	image, dir := p.image("image", 64), p.mkdir("m")
	socket := p.path("metrics")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(t, err)
	require.Contains(t, p.fails("mount", "--gpu", "host", "-o", "metrics="+socket, image, dir), "another program listens there; name another path")
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())

	p.ok("mount", "--gpu", "host", "-o", "metrics="+socket, image, dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), make([]byte, 1<<20), 0o600))
	f, err := os.Open(filepath.Join(dir, "file"))
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	page := scrape(t, socket)
	for _, want := range []string{
		`(?m)^lanefs_mount_info\{.*device=".*/image".*mountpoint=".*/m".*simulated="true".*\} 1$`,
		`(?m)^lanefs_operation_duration_seconds_count\{kind="fsync",layer="fuse",mountpoint=".*"\} 1$`,
		`(?m)^lanefs_operation_duration_seconds_bucket\{kind="write",layer="controller",mountpoint=".*",le="\+Inf"\} [1-9]\d*$`,
		`(?m)^lanefs_fuse_bytes_total\{direction="written",mountpoint=".*"\} 1\.048576e\+06$`,
		`(?m)^lanefs_queue_commands_total\{lane="host",.*\} [1-9]\d*$`,
		`(?m)^lanefs_commits_total\{.*\} [1-9]`,
	} {
		require.Regexp(t, regexp.MustCompile(want), page)
	}
	for _, document := range []string{"grafana.json", "MONITORING.md"} {
		text, err := os.ReadFile("../../docs/" + document)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile(`lanefs_[a-z_]+`).FindAllString(string(text), -1) {
			name = regexp.MustCompile(`_(bucket|count)$`).ReplaceAllString(name, "")
			if name != "lanefs_lanes_chosen_total" && name != "lanefs_backing_store_full_writes_total" { // where there is something to count
				require.Contains(t, page, "# TYPE "+name+" ", "%s has a series that the page has not", document)
			}
		}
	}
	if tool := prometheusTool("promtool"); tool != "" {
		c := exec.Command(tool, "check", "metrics")
		c.Stdin = strings.NewReader(page)
		out, err := c.CombinedOutput()
		require.NoError(t, err, "promtool check metrics:\n%s", out)
		require.Empty(t, string(out))
	}
	p.umount(dir)
	require.NoFileExists(t, socket)
}

// prometheusTool is a program of Prometheus's: on the PATH, or where lab/deps unpacked it.
func prometheusTool(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	cache, err := os.UserCacheDir()
	path := filepath.Join(cache, "lanefs", "prometheus", "usr", "bin", name)
	if err != nil || exec.Command(path, "--version").Run() != nil {
		return ""
	}
	return path
}

// TestPrometheus: a real Prometheus scrapes a mount.
func TestPrometheus(t *testing.T) {
	prometheus := prometheusTool("prometheus")
	if prometheus == "" {
		t.Skip("needs prometheus: make deps fetches it")
	}
	p := newPlace(t)
	dir := p.mkdir("m")
	at := freeAddress(t)
	p.ok("mount", "--gpu", "host", "-o", "metrics="+at, p.image("image", 64), dir)
	config := p.path("prometheus.yml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil,
		"global: {scrape_interval: 1s}\nscrape_configs: [{job_name: lanefs, static_configs: [{targets: ['%s']}]}]\n", at), 0o600))
	web := freeAddress(t)
	c := exec.Command(prometheus, "--config.file="+config, "--storage.tsdb.path="+p.path("tsdb"), "--web.listen-address="+web)
	c.Dir = p.dir
	c.Stdout, c.Stderr = t.Output(), t.Output()
	require.NoError(t, c.Start())
	p.children = append(p.children, c)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), make([]byte, 1<<20), 0o600))
	ask := func(query string) string {
		r, err := http.Get("http://" + web + "/api/v1/query?query=" + url.QueryEscape(query))
		if err != nil {
			return ""
		}
		defer r.Body.Close()
		var answer struct {
			Data struct {
				Result []struct{ Value [2]any }
			}
		}
		if json.NewDecoder(r.Body).Decode(&answer) != nil || len(answer.Data.Result) != 1 {
			return ""
		}
		return fmt.Sprint(answer.Data.Result[0].Value[1])
	}
	require.Eventually(t, func() bool {
		return ask(`up{job="lanefs"}`) == "1" && ask(`lanefs_fuse_bytes_total{direction="written"}`) == "1048576" &&
			ask(`histogram_quantile(0.99, sum by (le) (lanefs_operation_duration_seconds_bucket{layer="fuse",kind="write"}))`) != ""
	}, time.Minute, 200*time.Millisecond)
	c.Process.Signal(os.Interrupt)
	p.umount(dir)
}

// freeAddress is an address on the loopback that was free a moment ago.
func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}
