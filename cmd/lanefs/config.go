package main

import "github.com/lanefs/lanefs/cmd/lanefs/internal/mountopt"

// mountConfig is what a mount needs to know. The foreground process makes it and the daemon reads it back.
type mountConfig struct {
	Device     string // image file, absolute, or a PCI address; of an array the names of all members, separated by commas
	Dir        string // mount point, absolute and without symbolic links
	Foreground bool
	Part       int     `json:",omitempty"` // partition of Device; 0: all of it
	Array      bool    `json:",omitempty"` // Device is all of an array, which is meant
	Members    []where `json:",omitempty"` // of an array; nil: Device is one device
	Raw        bool    `json:",omitempty"` // Dir is a file, and shows the device
	mountopt.Config

	stop <-chan struct{} // closed when the user ends what opens it; nil: he does not
}
