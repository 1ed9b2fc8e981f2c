package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
)

var pciAddress = regexp.MustCompile(`^([0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$`)

// wantDevice says what a device can be.
const wantDevice = "want an image file, a block device (lsblk lists them) or an NVMe function's PCI address (lspci -D lists them)"

// resolveDevice makes a DEVICE argument absolute. What cannot be a device at all is refused here, in the foreground.
func resolveDevice(device string) (string, error) {
	switch {
	case device == "":
		return "", errors.New("the device is an empty name; " + wantDevice)
	case pciAddress.MatchString(device):
		if _, err := os.Lstat(device); err != nil { // a file of that name is a file
			return resolveFunction(device)
		}
	}
	abs, err := absolute(device)
	if err != nil {
		return "", err
	}
	st, err := os.Stat(abs)
	if err != nil {
		return "", fmt.Errorf("device %q: %w; %s", device, reason(err), wantDevice)
	}
	if st.IsDir() {
		return "", fmt.Errorf("device %q is a directory; %s", device, wantDevice)
	}
	if !st.Mode().IsRegular() && !isBlock(st) {
		return "", fmt.Errorf("device %q is neither an image file nor a block device; %s", device, wantDevice)
	}
	return abs, nil
}

// isBlock says whether that is a block device.
func isBlock(st os.FileInfo) bool { return st.Mode()&os.ModeType == os.ModeDevice }
