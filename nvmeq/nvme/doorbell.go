package nvme

// Stride is CAP.DSTRD as a distance: doorbells are this many bytes apart (PCIe §3.1.2.1).
type Stride int64

// Stride of the controller's doorbells in bytes, 4 or more.
func (c CAP) Stride() Stride { return 4 << c.DSTRD() }

// SQ is the BAR offset of submission queue qid's tail doorbell, SQyTDBL (PCIe §3.1.2.1).
func (s Stride) SQ(qid uint16) int64 { return RegDBS + 2*int64(qid)*int64(s) }

// CQ is the BAR offset of completion queue qid's head doorbell, CQyHDBL (PCIe §3.1.2.2).
func (s Stride) CQ(qid uint16) int64 { return RegDBS + (2*int64(qid)+1)*int64(s) }

// End is the first byte after the doorbells of queues 0 to last.
func (s Stride) End(last uint16) int64 { return s.CQ(last) + 4 }
