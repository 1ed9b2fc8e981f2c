package main

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
)

// identity is what `lanefs identify --json` prints. Sizes are bytes.
type identity struct {
	Device     string             `json:"device"`
	Simulated  bool               `json:"simulated"`                   // the controller is software
	Physical   string             `json:"physical_function,omitempty"` // that DEVICE is a virtual function of
	Model      string             `json:"model"`
	Serial     string             `json:"serial"`
	Firmware   string             `json:"firmware"`
	Version    string             `json:"version"`
	VID        uint16             `json:"vid"`
	SSVID      uint16             `json:"ssvid"`
	SUBNQN     string             `json:"subnqn"`
	CNTLID     uint16             `json:"cntlid"`
	MDTS       uint8              `json:"mdts"`
	Transfer   int64              `json:"max_transfer"` // 0: no limit
	Queues     int                `json:"queue_pairs"`
	Entries    int                `json:"queue_entries"` // at most
	Cache      *cache             `json:"volatile_write_cache"`
	Zeroes     bool               `json:"write_zeroes"`
	DSM        bool               `json:"dataset_management"`
	Doorbells  bool               `json:"doorbell_buffer_config"`
	SGLS       uint32             `json:"sgls"`
	CMB        *cmb               `json:"cmb"`                // null: none
	HostBuffer *hostBufferReport  `json:"host_memory_buffer"` // null: it asks for none
	Ring       *rung              `json:"ring,omitempty"`
	Namespaces []*namespaceReport `json:"namespaces"`
	Partition  *partitionReport   `json:"partition,omitempty"` // if DEVICE names one
}

type partitionReport struct {
	Number int    `json:"number"`
	First  int64  `json:"offset"`
	Size   int64  `json:"size"`
	ID     string `json:"partuuid,omitempty"`
	Name   string `json:"partlabel,omitempty"`
}

type cache struct {
	On bool `json:"on"`
}

// hostBufferReport is memory of the host's that the drive would like to have for itself, in bytes.
type hostBufferReport struct {
	Wanted int64 `json:"wanted"`
	Least  int64 `json:"least"`
	Given  int64 `json:"given"`
}

type cmb struct {
	BAR    int   `json:"bar"`
	Offset int64 `json:"offset"`
	Size   int64 `json:"size"`
	SQ     bool  `json:"submission_queues"`
	CQ     bool  `json:"completion_queues"`
	Lists  bool  `json:"lists"`
	Reads  bool  `json:"data_read"` // that the controller writes
	Writes bool  `json:"data_written"`
}

// rung is --ring gpu's. Addresses are text, being of no use to a program.
type rung struct {
	Runtime  string `json:"runtime"`
	Memory   string `json:"memory"`
	Doorbell string `json:"doorbell"`
	Data     string `json:"data"`
	IOVA     string `json:"iova"`
	Model    string `json:"model"` // as read from device memory
	Serial   string `json:"serial"`
}

type namespaceReport struct {
	NSID     uint32   `json:"nsid"`
	Unusable string   `json:"unusable,omitempty"`
	Blocks   uint64   `json:"blocks"`
	Block    int64    `json:"block_size"`
	NCAP     uint64   `json:"ncap"`
	NUSE     uint64   `json:"nuse"`
	ReadOnly bool     `json:"write_protected"`
	NGUID    string   `json:"nguid"`
	EUI64    string   `json:"eui64"`
	UUID     string   `json:"uuid"`
	Shared   bool     `json:"shared"` // other controllers may have it at the same time
	Formats  []format `json:"lba_formats"`
}

type format struct {
	Index       int   `json:"index"`
	Size        int64 `json:"size"`
	Metadata    int   `json:"metadata"`
	Performance int   `json:"performance"` // 0 is the best
	InUse       bool  `json:"in_use"`
}

// identity collects what Identify says. With ring a kernel rings the doorbell of one more command.
func (c *drive) identity(ring bool) (*identity, error) {
	n, id := c.nvme, c.nvme.Identify()
	out := &identity{
		Device: n.Name(), Simulated: n.Simulated(), Model: id.MN, Serial: id.SN, Firmware: id.FR, Version: fmt.Sprint(n.Version()),
		VID: id.VID, SSVID: id.SSVID, SUBNQN: id.SUBNQN, CNTLID: id.CNTLID, MDTS: id.MDTS, Transfer: n.MaxTransfer(),
		Queues: n.Queues(), Entries: int(n.Capabilities().MQES()),
		Zeroes: id.ONCS.WriteZeroes(), DSM: id.ONCS.DSM(), Doorbells: id.OACS.DoorbellBuf(), SGLS: id.SGLS,
	}
	if f, err := nvmeFunction(out.Device); err == nil {
		out.Physical = string(f.Physical)
	}
	present, on, err := n.WriteCache()
	if err != nil {
		return nil, err
	}
	if present {
		out.Cache = &cache{on}
	}
	if loc, size, ok := n.CMB(); ok {
		out.CMB = &cmb{loc.BIR(), loc.OFST() * size.SZU(), size.Size(), size.SQS(), size.CQS(), size.LISTS(), size.RDS(), size.WDS()}
	}
	if want, least := id.HostBuffer(); want > 0 {
		out.HostBuffer = &hostBufferReport{want, least, n.HostBuffer()}
	}
	for _, ns := range n.Namespaces() {
		out.Namespaces = append(out.Namespaces, newNamespace(ns))
	}
	if !ring {
		return out, nil
	}
	r, err := engine.ProveDoorbell(n)
	if err != nil {
		return nil, fmt.Errorf("--ring gpu: %w", err)
	}
	out.Ring = &rung{c.rt.Name(), fmt.Sprint(r.Kind), hexa(r.Doorbell), hexa(r.Data), hexa(r.IOVA), r.Identify.MN, r.Identify.SN}
	if c.bar != nil {
		out.Ring.Memory += " of " + c.bar.dev.Name()
	}
	return out, nil
}

func hexa[T ~uint64](v T) string { return fmt.Sprintf("%#x", uint64(v)) }

func newNamespace(ns *controller.Namespace) *namespaceReport {
	id := ns.Identify
	out := &namespaceReport{
		NSID: ns.ID, Blocks: ns.Blocks, Block: ns.BlockSize, NCAP: id.NCAP, NUSE: id.NUSE, ReadOnly: ns.ReadOnly,
		Shared: id.Shared(), NGUID: hex.EncodeToString(id.NGUID[:]), EUI64: hex.EncodeToString(id.EUI64[:]), UUID: hex.EncodeToString(ns.Descriptor.UUID[:]),
	}
	if ns.Unusable != nil {
		out.Unusable = ns.Unusable.Error()
	}
	for i, f := range id.Formats {
		if f.BlockSize() > 0 {
			out.Formats = append(out.Formats, format{i, f.BlockSize(), int(f.MS()), int(f.RP()), i == id.FormatIndex()})
		}
	}
	return out
}

// print writes it for people, under the specification's names.
func (i *identity) print(out io.Writer) error {
	how := ""
	if i.Simulated {
		how = " (simulated: the controller is software)"
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "controller\t%s%s\n", shown(i.Device), how)
	if i.Physical != "" {
		fmt.Fprintf(w, "  virtual function of\t%s\n", i.Physical)
	}
	fmt.Fprintf(w, "  MN\t%s\n  SN\t%s\n  FR\t%s\n", shown(i.Model), shown(i.Serial), shown(i.Firmware))
	fmt.Fprintf(w, "  VS\t%s\n  VID, SSVID\t%04xh, %04xh\n  SUBNQN, CNTLID\t%s, %d\n", i.Version, i.VID, i.SSVID, shown(i.SUBNQN), i.CNTLID)
	mdts := "no limit"
	if i.Transfer > 0 {
		mdts = units.Bytes(i.Transfer)
	}
	fmt.Fprintf(w, "  MDTS\t%d (%s)\n", i.MDTS, mdts)
	fmt.Fprintf(w, "  I/O queue pairs\t%d, up to %d entries each\n", i.Queues, i.Entries)
	wc := "no"
	if i.Cache != nil {
		wc = map[bool]string{true: "yes, on", false: "yes, off"}[i.Cache.On]
	}
	fmt.Fprintf(w, "  volatile write cache\t%s\n", wc)
	fmt.Fprintf(w, "  Write Zeroes\t%s\n  Dataset Management\t%s\n  Doorbell Buffer Config\t%s\n", yesNo(i.Zeroes), yesNo(i.DSM), yesNo(i.Doorbells))
	fmt.Fprintf(w, "  SGLS\t%08xh (%s)\n", i.SGLS, [4]string{"no SGLs", "SGLs", "SGLs, dword aligned", "reserved"}[i.SGLS&3])
	if m := i.CMB; m != nil {
		fmt.Fprintf(w, "  CMB\t%s at %#x of BAR %d; SQ %s, CQ %s, lists %s, data read %s, data written %s\n", units.Bytes(m.Size), m.Offset, m.BAR,
			yesNo(m.SQ), yesNo(m.CQ), yesNo(m.Lists), yesNo(m.Reads), yesNo(m.Writes))
	} else {
		fmt.Fprintf(w, "  CMB\tnone\n")
	}
	if b := i.HostBuffer; b != nil {
		fmt.Fprintf(w, "  host memory buffer\twanted %s, at least %s; given %s\n", units.Bytes(b.Wanted), units.Bytes(b.Least), units.Bytes(b.Given))
	}
	if r := i.Ring; r != nil {
		fmt.Fprintf(w, "rung by a kernel\truntime %s, doorbell at %s\n", r.Runtime, r.Doorbell)
		fmt.Fprintf(w, "  answer in\t%s memory at %s, IOVA %s\n", r.Memory, r.Data, r.IOVA)
		fmt.Fprintf(w, "  MN, SN there\t%s, %s\n", r.Model, r.Serial)
	}
	for _, ns := range i.Namespaces {
		ns.print(w)
	}
	if p := i.Partition; p != nil {
		fmt.Fprintf(w, "partition\t%d\n  offset, size\t%d, %d bytes (%s)\n", p.Number, p.First, p.Size, units.Bytes(p.Size))
		fmt.Fprintf(w, "  PARTUUID\t%s\n  PARTLABEL\t%s\n", cmp.Or(p.ID, "none"), cmp.Or(shown(p.Name), "none"))
	}
	return w.Flush()
}

func (n *namespaceReport) print(w io.Writer) {
	fmt.Fprintf(w, "namespace\t%d\n", n.NSID)
	if n.Unusable != "" {
		fmt.Fprintf(w, "  not usable\t%s\n", n.Unusable)
	}
	if n.Block > 0 {
		fmt.Fprintf(w, "  size\t%d blocks of %d bytes (%s)\n", n.Blocks, n.Block, units.Bytes(int64(n.Blocks)*n.Block))
	}
	fmt.Fprintf(w, "  NCAP, NUSE\t%d, %d\n", n.NCAP, n.NUSE)
	if n.Shared {
		fmt.Fprintf(w, "  shared\tother controllers of the subsystem may have it too\n")
	}
	if n.ReadOnly {
		fmt.Fprintf(w, "  write protected\tyes\n")
	}
	fmt.Fprintf(w, "  NGUID\t%s\n  EUI64\t%s\n  UUID\t%s\n", n.NGUID, n.EUI64, n.UUID)
	for _, f := range n.Formats {
		use := ""
		if f.InUse {
			use = ", in use"
		}
		fmt.Fprintf(w, "  LBA format %d\t%d bytes, %d of metadata, performance %d%s\n", f.Index, f.Size, f.Metadata, f.Performance, use)
	}
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
