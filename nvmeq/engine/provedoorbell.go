package engine

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/bounded"
	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// DoorbellProof is one Identify Controller command whose doorbell a kernel rang, and whose data the controller wrote into device
// memory: the smallest proof that both paths between an NVMe drive and a GPU work.
//
//  1. the CPU writes the entry into the admin queue
//  2. a kernel stores to the admin doorbell in the BAR     device → controller
//  3. the controller writes the data where PRP1 says       controller → device memory
//  4. the CPU reaps the completion, has what was written flushed, and copies the data out of the device's memory
type DoorbellProof struct {
	Doorbell gpu.Addr  // of the admin submission queue, as the kernel sees it
	Data     gpu.Addr  // of the data, likewise
	IOVA     nvme.IOVA // the same for the controller
	Kind     gpu.MemKind
	Identify *nvme.IdentifyController
}

// ProveDoorbell executes that command. It fills the data's memory with a pattern first: what is decoded was written by the controller.
func ProveDoorbell(c *controller.Controller) (r DoorbellProof, err error) {
	r.Kind = gpu.DeviceFine
	image, err := kernels.Image(c.Runtime().Facts().Arch)
	if err != nil {
		return r, err
	}
	module, err := c.Runtime().Load(image)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, module.Close()) }()
	ring, err := module.Function(kernels.RingKernel)
	if err != nil {
		return r, err
	}
	stream, err := c.Runtime().NewStream()
	if err != nil {
		return r, err
	}
	stream = bounded.Stream(c.Runtime(), stream)
	defer func() { err = errors.Join(err, stream.Close()) }()
	bar, release, err := c.OpenBAR()
	if err != nil {
		return r, fmt.Errorf("the BAR is out of the kernels' reach: %w", err)
	}
	defer func() { err = errors.Join(err, release()) }()
	data, err := c.AllocDMA(r.Kind, nvme.IdentifySize, controller.PageSize)
	if err != nil {
		return r, err
	}
	// After a command without a completion the controller may still write to the memory: it stays mapped.
	defer func() {
		if c.AdminErr() == nil {
			err = errors.Join(err, data.Close())
		}
	}()
	r.Doorbell, r.Data, r.IOVA = bar.At(c.Doorbells().SQ(0)), data.Addr, data.IOVA

	const poison = 0xa5
	if err := fillAndWait(stream, data.Addr, poison, nvme.IdentifySize); err != nil {
		return r, err
	}
	if err := identifyByDoorbell(c, stream, ring, r); err != nil {
		return r, err
	}
	if of, ok := c.KeptAt(r.IOVA); ok {
		if of.Apart(gpu.Reach{Owner: gpu.OwnerPages}) { // the admin queue's completions are in host memory
			if err := c.Land(); err != nil {
				return r, err
			}
		}
		if of.Keeper != nil {
			if err := of.Keeper.Arrived(); err != nil {
				return r, err
			}
		}
	}
	b, err := readBack(c, stream, data)
	if err != nil {
		return r, err
	}
	if r.Identify, err = nvme.DecodeIdentifyController(b); err != nil {
		return r, err
	}
	if !reflect.DeepEqual(r.Identify, c.Identify()) {
		return r, fmt.Errorf("the command completed, but %v memory of %s does not hold the controller's answer: its writes lead elsewhere", r.Kind, c.Runtime().Name())
	}
	return r, nil
}

func identifyByDoorbell(c *controller.Controller, stream gpu.Stream, ring gpu.Function, r DoorbellProof) error {
	return c.IdentifyBy(func(tail uint32) error {
		if err := stream.Launch(ring, one, one, uint64(r.Doorbell), uint64(tail)); err != nil {
			return err
		}
		return stream.Wait(ringTimeout)
	}, r.IOVA)
}

// ringTimeout bounds the launch that stores to the doorbell.
const ringTimeout = 10 * time.Second

// readBack copies device memory to the host, by the device itself.
func readBack(c *controller.Controller, stream gpu.Stream, d *controller.DMA) ([]byte, error) {
	host, err := c.Runtime().Alloc(gpu.HostMapped, nvme.IdentifySize)
	if err != nil {
		return nil, err
	}
	if err := stream.Copy(host.Addr(), d.Addr, nvme.IdentifySize); err != nil {
		return nil, errors.Join(err, host.Close())
	}
	if err := stream.Wait(copyTimeout); err != nil {
		return nil, err // the copy may yet come: the memory stays
	}
	b := append([]byte(nil), host.Host()[:nvme.IdentifySize]...)
	return b, host.Close()
}
