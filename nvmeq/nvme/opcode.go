package nvme

import "fmt"

// Opcode is CDW0.OPC. Admin and I/O commands share the number space, so a name needs to know the queue.
type Opcode uint8

// Admin commands (Base §5).
const (
	AdminDeleteSQ     Opcode = 0x00
	AdminCreateSQ     Opcode = 0x01
	AdminGetLogPage   Opcode = 0x02
	AdminDeleteCQ     Opcode = 0x04
	AdminCreateCQ     Opcode = 0x05
	AdminIdentify     Opcode = 0x06
	AdminAbort        Opcode = 0x08
	AdminSetFeatures  Opcode = 0x09
	AdminGetFeatures  Opcode = 0x0a
	AdminAsyncEvent   Opcode = 0x0c
	AdminNSManagement Opcode = 0x0d
	AdminKeepAlive    Opcode = 0x18
	AdminDoorbellBuf  Opcode = 0x7c
	AdminFormatNVM    Opcode = 0x80
)

// I/O commands of the NVM command set (Base §7, NVM §3).
const (
	IOFlush       Opcode = 0x00
	IOWrite       Opcode = 0x01
	IORead        Opcode = 0x02
	IOWriteUncorr Opcode = 0x04
	IOCompare     Opcode = 0x05
	IOWriteZeroes Opcode = 0x08
	IODSM         Opcode = 0x09
	IOVerify      Opcode = 0x0c
	IOCopy        Opcode = 0x19
)

var adminNames = map[Opcode]string{
	AdminDeleteSQ: "Delete I/O Submission Queue", AdminCreateSQ: "Create I/O Submission Queue",
	AdminGetLogPage: "Get Log Page", AdminDeleteCQ: "Delete I/O Completion Queue",
	AdminCreateCQ: "Create I/O Completion Queue", AdminIdentify: "Identify", AdminAbort: "Abort",
	AdminSetFeatures: "Set Features", AdminGetFeatures: "Get Features",
	AdminAsyncEvent: "Asynchronous Event Request", AdminNSManagement: "Namespace Management",
	AdminKeepAlive: "Keep Alive", AdminDoorbellBuf: "Doorbell Buffer Config", AdminFormatNVM: "Format NVM",
}

var ioNames = map[Opcode]string{
	IOFlush: "Flush", IOWrite: "Write", IORead: "Read", IOWriteUncorr: "Write Uncorrectable", IOCompare: "Compare",
	IOWriteZeroes: "Write Zeroes", IODSM: "Dataset Management", IOVerify: "Verify", IOCopy: "Copy",
}

// Name is the command in the specification's words; admin says which of the two sets it is from.
func (o Opcode) Name(admin bool) string {
	names := ioNames
	if admin {
		names = adminNames
	}
	if s, ok := names[o]; ok {
		return s
	}
	if admin {
		return fmt.Sprintf("admin command %#02x", uint8(o))
	}
	return fmt.Sprintf("I/O command %#02x", uint8(o))
}
