package doctor

import "fmt"

// Step is something to do, in its order. Command is what to paste into a shell, by root unless it begins with lanefs; empty where it takes
// a hand.
type Step struct {
	What    string `json:"what"`
	Command string `json:"command,omitempty"`
}

// steps are what to do next: what every mount needs, then the way to the first drive that is free, then what is faster, then a mount.
func (x *examiner) steps() []Step {
	steps := []Step{}
	add := func(what, command string) { steps = append(steps, Step{what, command}) }
	missing := func(area, what string) *Finding {
		for i := range x.Findings {
			if f := &x.Findings[i]; f.Area == area && f.What == what && !f.OK {
				return f
			}
		}
		return nil
	}
	if f := missing(Basics, "FUSE"); f != nil {
		if x.exists("dev/fuse") {
			add("let this user open /dev/fuse", "chmod 666 /dev/fuse")
		} else {
			add("give this machine FUSE (in a container: start it with --device /dev/fuse)", "modprobe fuse")
		}
	}
	if missing(Basics, "fusermount3") != nil && !x.asRoot() {
		add("install what ordinary users mount with", "apt-get install fuse3")
	}
	for i := range x.Findings {
		if f := &x.Findings[i]; f.Needed && !f.OK && f.What != "FUSE" {
			add(f.What+": "+f.Remedy, "")
		}
	}
	steps = append(steps, x.driveSteps(missing)...)
	if f := missing(Basics, "FUSE request size"); f != nil {
		add("let requests of 1 MiB in", f.Remedy)
	}
	if missing(Basics, "FUSE over io_uring") != nil && x.text("sys/module/fuse/parameters/enable_uring") == "N" {
		add("have the kernel's requests come by io_uring, which is faster, from the next mount on", "echo Y > /sys/module/fuse/parameters/enable_uring")
	}
	if x.Healthy() {
		mkfs := "mkfs.ext4 -q"
		if !x.asRoot() {
			// mkfs.ext4 makes a volume of root's, and Debian has it where an ordinary user's PATH does not lead.
			mkfs = "PATH=$PATH:/usr/sbin:/sbin mkfs.ext4 -q -E root_owner=$(id -u):$(id -g)"
		}
		add("mount an image", "truncate -s 1G disk.img && "+mkfs+" disk.img && mkdir -p mnt && lanefs mount disk.img mnt")
	}
	return steps
}

// driveSteps lead to the mount of a drive, if there is one that is free.
func (x *examiner) driveSteps(missing func(area, what string) *Finding) (steps []Step) {
	add := func(what, command string) { steps = append(steps, Step{what, command}) }
	var drive *Drive
	for i := range x.Drives {
		d := &x.Drives[i]
		if d.Ready && len(d.Users) == 0 {
			drive = d
			break
		}
		if drive == nil && d.Bindable {
			drive = d
		}
	}
	if drive == nil {
		if f := missing(IOMMU, "IOMMU"); f != nil && len(x.Drives) > 0 {
			add("for a drive: "+f.Remedy, "")
		}
		return steps
	}
	if missing(IOMMU, "vfio-pci") != nil {
		add("load the driver that hands functions to user space", "modprobe vfio-pci")
	}
	if !drive.Ready {
		add(fmt.Sprintf("hand the drive %s to user space: it disappears from /dev until lanefs unbind", drive.Addr), fmt.Sprintf("lanefs bind %s", drive.Addr))
	}
	if missing(Basics, "locked memory limit") != nil {
		add("let the mount pin memory", "ulimit -l unlimited")
	}
	add("look whether the drive answers", fmt.Sprintf("lanefs identify %s", drive.Addr))
	add("mount the ext4 volume on it", fmt.Sprintf("mkdir -p mnt && lanefs mount %s mnt", drive.Addr))
	return steps
}
