package nvme

import "fmt"

// FID is a feature identifier (Base §5.27.1).
type FID uint8

const (
	FIDArbitration   FID = 0x01
	FIDPower         FID = 0x02
	FIDTemperature   FID = 0x04
	FIDErrorRecovery FID = 0x05
	FIDWriteCache    FID = 0x06
	FIDNumQueues     FID = 0x07
	FIDIntCoalescing FID = 0x08
	FIDIntVector     FID = 0x09
	FIDWriteAtomic   FID = 0x0a
	FIDAsyncEvent    FID = 0x0b
	FIDHostBuffer    FID = 0x0d
	FIDTimestamp     FID = 0x0e
	FIDHostBehavior  FID = 0x16
	FIDCmdSetProfile FID = 0x19
	FIDWriteProtect  FID = 0x84
)

// FeatureSelect is Get Features' SEL (Base §5.15).
type FeatureSelect uint8

const (
	FeatureCurrent FeatureSelect = iota
	FeatureDefault
	FeatureSaved
	FeatureSupported
)

// NumQueues is the value of Number of Queues (Base §5.27.1.5), in Set Features what is asked for and in the completion
// what was given: counts of I/O queues, less one.
type NumQueues uint32

// NewNumQueues asks for counts of I/O submission and completion queues, 1 to 65536.
func NewNumQueues(sqs, cqs int) NumQueues { return NumQueues(uint32(cqs-1)<<16 | uint32(sqs-1)) }

// SQs and CQs are the counts of I/O submission and completion queues.
func (n NumQueues) SQs() int { return int(field(n, 0, 16)) + 1 }
func (n NumQueues) CQs() int { return int(field(n, 16, 16)) + 1 }

// AsyncEvent is the completion of an Asynchronous Event Request (Base §5.2.1).
type AsyncEvent uint32

// AsyncType is AsyncEvent's type.
type AsyncType uint8

const (
	AsyncError     AsyncType = 0
	AsyncSMART     AsyncType = 1
	AsyncNotice    AsyncType = 2
	AsyncImmediate AsyncType = 3
	AsyncOneShot   AsyncType = 4
	AsyncIOCmdSet  AsyncType = 6
	AsyncVendor    AsyncType = 7
)

// Type and Info are the event's type and its information, which means something different under each type.
func (e AsyncEvent) Type() AsyncType { return AsyncType(field(e, 0, 3)) }
func (e AsyncEvent) Info() uint8     { return uint8(field(e, 8, 8)) }

// LID is the log page that must be read before the controller reports this type again.
func (e AsyncEvent) LID() LID { return LID(field(e, 16, 8)) }

var asyncWords = map[AsyncType][]string{
	AsyncError: {"write to an invalid doorbell register", "invalid doorbell value written", "diagnostic failure",
		"persistent internal error", "transient internal error", "firmware image load error"},
	AsyncSMART: {"subsystem reliability compromised", "temperature threshold crossed", "spare capacity below threshold"},
	AsyncNotice: {"namespace attribute changed", "firmware activation starting", "telemetry log changed",
		"asymmetric namespace access changed", "predictable latency event aggregate log changed",
		"LBA status information alert", "endurance group event aggregate page changed", "reservation log page available"},
}

func (e AsyncEvent) String() string {
	words := asyncWords[e.Type()]
	if int(e.Info()) < len(words) {
		return words[e.Info()]
	}
	return fmt.Sprintf("type %d information %#02x", e.Type(), e.Info())
}
