package nvme

// CMBLOC is Controller Memory Buffer Location (Base §3.1.3.11).
type CMBLOC uint32

// BIR is the number of the BAR that holds the buffer.
func (c CMBLOC) BIR() int { return int(field(c, 0, 3)) }

// OFST is the buffer's offset in its BAR, in units of CMBSZ.SZU.
func (c CMBLOC) OFST() int64 { return int64(field(c, 12, 20)) }

// CMBSZ is Controller Memory Buffer Size (Base §3.1.3.12).
type CMBSZ uint32

// SQS says that submission queues may be in the buffer; CQS completion queues, LISTS PRP and SGL lists, RDS data that
// the controller writes, WDS data that it reads.
func (c CMBSZ) SQS() bool   { return field(c, 0, 1) == 1 }
func (c CMBSZ) CQS() bool   { return field(c, 1, 1) == 1 }
func (c CMBSZ) LISTS() bool { return field(c, 2, 1) == 1 }
func (c CMBSZ) RDS() bool   { return field(c, 3, 1) == 1 }
func (c CMBSZ) WDS() bool   { return field(c, 4, 1) == 1 }

// SZU is the unit of SZ and of CMBLOC.OFST in bytes: 4 KiB to 64 GiB by steps of 16; 0 for a reserved value.
func (c CMBSZ) SZU() int64 {
	u := field(c, 8, 4)
	if u > 6 {
		return 0
	}
	return 4096 << (4 * u)
}

// SZ is the buffer's size in units of SZU.
func (c CMBSZ) SZ() int64 { return int64(field(c, 12, 20)) }

// Size is the buffer's size in bytes.
func (c CMBSZ) Size() int64 { return c.SZ() * c.SZU() }

// CMBMSC is Controller Memory Buffer Memory Space Control (Base §3.1.3.14).
type CMBMSC uint64

// NewCMBMSC enables the buffer's registers and, with enable, its addressing by the controller from base (4096-aligned).
func NewCMBMSC(base IOVA, enable bool) CMBMSC {
	v := uint64(base)&^0xfff | 1
	if enable {
		v |= 2
	}
	return CMBMSC(v)
}

// CRE says that CMBLOC and CMBSZ may be read.
func (c CMBMSC) CRE() bool { return field(c, 0, 1) == 1 }
