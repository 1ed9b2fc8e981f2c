package vm

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// monitor is a connection to QEMU's monitor, from inside the machine that it controls (QEMU Machine Protocol).
type monitor struct {
	file  *os.File
	lines chan []byte
	seen  []event // received while waiting for something else
}

type event struct {
	Event string
	Data  map[string]any
}

const (
	monitorNode = "/dev/virtio-ports/qmp"
	qmpTimeout  = 3 * time.Minute
)

// theMonitor is opened once: QEMU greets only once.
var theMonitor = sync.OnceValues(func() (*monitor, error) {
	f, err := os.OpenFile(monitorNode, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	m := &monitor{file: f, lines: make(chan []byte, 64)}
	go func() {
		defer close(m.lines)
		in := bufio.NewScanner(f)
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			m.lines <- append([]byte(nil), in.Bytes()...)
		}
	}()
	if _, err := m.next(func(msg map[string]any) bool { return msg["QMP"] != nil }); err != nil {
		return nil, fmt.Errorf("QEMU's greeting: %w", err)
	}
	_, err = m.execute("qmp_capabilities", nil)
	return m, err
})

func qemu(t testing.TB) *monitor {
	t.Helper()
	m, err := theMonitor()
	require.NoError(t, err, "QEMU's monitor at %s", monitorNode)
	return m
}

// next reads messages up to the wanted one and keeps events in seen.
func (m *monitor) next(right func(map[string]any) bool) (map[string]any, error) {
	deadline := time.After(qmpTimeout)
	for {
		select {
		case line, ok := <-m.lines:
			if !ok {
				return nil, errors.New("the monitor has hung up")
			}
			var msg map[string]any
			if err := json.Unmarshal(line, &msg); err != nil {
				return nil, fmt.Errorf("%q: %w", line, err)
			}
			if name, ok := msg["event"].(string); ok {
				data, _ := msg["data"].(map[string]any)
				m.seen = append(m.seen, event{name, data})
			}
			if right(msg) {
				return msg, nil
			}
		case <-deadline:
			return nil, fmt.Errorf("no answer within %v", qmpTimeout)
		}
	}
}

// command is a QMP command with its arguments, if any.
type command struct {
	name string
	args map[string]any
}

func (c command) encode() ([]byte, error) {
	msg := map[string]any{"execute": c.name}
	if c.args != nil {
		msg["arguments"] = c.args
	}
	b, err := json.Marshal(msg)
	return append(b, '\n'), err
}

func (m *monitor) execute(name string, args map[string]any) (any, error) {
	c := command{name, args}
	b, err := c.encode()
	if err != nil {
		return nil, err
	}
	if _, err := m.file.Write(b); err != nil {
		return nil, err
	}
	return m.answer(c)
}

// answer waits for the answer to a command that was sent.
func (m *monitor) answer(c command) (any, error) {
	msg, err := m.next(func(msg map[string]any) bool { return msg["return"] != nil || msg["error"] != nil })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	if msg["error"] != nil {
		return nil, fmt.Errorf("%s %v: %v", c.name, c.args, msg["error"])
	}
	return msg["return"], nil
}

// whileStopped runs lines of QEMU's human monitor while the whole machine is stopped, including the calling program: so all
// lines are sent in one write. QEMU's first stop ends when no CPU is inside a device and the block layer is idle; the second
// one, when the commands of the last doorbells are done, too.
func (m *monitor) whileStopped(t testing.TB, lines ...string) {
	t.Helper()
	commands := []command{{name: "stop"}, {name: "stop"}}
	for _, line := range lines {
		commands = append(commands, command{"human-monitor-command", map[string]any{"command-line": line}})
	}
	commands = append(commands, command{name: "cont"})
	var all []byte
	for _, c := range commands {
		b, err := c.encode()
		require.NoError(t, err)
		all = append(all, b...)
	}
	_, err := m.file.Write(all)
	require.NoError(t, err)
	for _, c := range commands {
		said, err := m.answer(c)
		require.NoError(t, err)
		if text, ok := said.(string); ok {
			require.Empty(t, text, "%v", c.args)
		}
	}
}

// do is execute; an error fails the test.
func (m *monitor) do(t testing.TB, command string, args map[string]any) {
	t.Helper()
	_, err := m.execute(command, args)
	require.NoError(t, err)
}

// await waits for an event about a device.
func (m *monitor) await(t testing.TB, name, device string) {
	t.Helper()
	is := func(e event) bool { return e.Event == name && e.Data["device"] == device }
	for _, e := range m.seen {
		if is(e) {
			return
		}
	}
	_, err := m.next(func(map[string]any) bool { return len(m.seen) > 0 && is(m.seen[len(m.seen)-1]) })
	require.NoError(t, err, "waiting for %s of %s", name, device)
}

// medium adds a disk image to QEMU as a block node, through layers if there are any, outermost first. It is removed with the
// test. Disks 7 and 8 are for tests.
func medium(t testing.TB, disk int, layers ...map[string]any) (node string) {
	t.Helper()
	m := qemu(t)
	spec := map[string]any{"driver": "raw", "file": map[string]any{"driver": "file", "filename": fmt.Sprintf("disk%d.raw", disk), "discard": "unmap"}}
	for i := len(layers) - 1; i >= 0; i-- {
		layers[i][below(layers[i])] = spec
		spec = layers[i]
	}
	node = fmt.Sprintf("medium%d", disk)
	spec["node-name"] = node
	m.do(t, "blockdev-add", spec)
	t.Cleanup(func() {
		// The removed controller may hold the node for a moment.
		var err error
		for range 50 {
			if _, err = m.execute("blockdev-del", map[string]any{"node-name": node}); err == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Errorf("removing %s: %v", node, err)
	})
	return node
}

// below is what a layer calls the node that it stands on.
func below(layer map[string]any) string {
	if layer["driver"] == "blkdebug" {
		return "image"
	}
	return "file"
}

// plug plugs an NVMe controller on the medium into port1 and returns its address; it is unplugged with the test.
func plug(t testing.TB, node string, options map[string]any) (addr string) {
	t.Helper()
	m := qemu(t)
	args := map[string]any{"driver": "nvme", "id": "plugged", "bus": "port1", "serial": "PLUGGED", "drive": node}
	for k, v := range options {
		args[k] = v
	}
	m.seen = nil
	slotOff(t, port1)
	m.do(t, "device_add", args)
	t.Cleanup(func() { eject(t) })
	require.Eventually(t, func() bool {
		found, _ := filepath.Glob("/sys/bus/pci/devices/" + port1 + "/0000:*/class")
		if len(found) == 0 {
			return false
		}
		addr = filepath.Base(filepath.Dir(found[0]))
		return driver(addr) == "nvme"
	}, 3*time.Minute, 100*time.Millisecond, "the guest does not see the controller in port1: %s", kernelLog())
	return addr
}

// deleted says whether QEMU has removed the controller that was plugged last.
func (m *monitor) deleted() bool {
	for _, e := range m.seen {
		if e.Event == "DEVICE_DELETED" && e.Data["device"] == "plugged" {
			return true
		}
	}
	return false
}

// eject removes the controller in port1 by switching its slot off, which QEMU answers by removing it. An unplugged one blinks for 5 s first.
func eject(t testing.TB) {
	t.Helper()
	m := qemu(t)
	if m.deleted() {
		return
	}
	slots, _ := filepath.Glob("/sys/bus/pci/slots/*/address")
	for _, s := range slots {
		below, err := os.ReadFile(s)
		require.NoError(t, err)
		if _, err := os.Stat("/sys/bus/pci/devices/" + port1 + "/" + strings.TrimSpace(string(below)) + ".0"); err == nil {
			require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(s), "power"), []byte("0"), 0))
			m.await(t, "DEVICE_DELETED", "plugged")
			return
		}
	}
	unplug(t) // the kernel has not seen it
}

// unplug requests the removal of the controller in port1, and waits until the guest has released it.
func unplug(t testing.TB) {
	t.Helper()
	m := qemu(t)
	if m.deleted() {
		return
	}
	// While the slot's power indicator still blinks after plugging in, QEMU refuses.
	deadline := time.Now().Add(3 * time.Minute)
	for {
		_, err := m.execute("device_del", map[string]any{"id": "plugged"})
		if err == nil {
			break
		}
		require.True(t, time.Now().Before(deadline), "device_del: %v", err)
		time.Sleep(500 * time.Millisecond)
	}
	m.await(t, "DEVICE_DELETED", "plugged")
}
