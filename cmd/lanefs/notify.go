package main

import (
	"fmt"
	"net"
	"os"
)

// notify sends a state to systemd, if that started this process with Type=notify (sd_notify(3)): a datagram to the socket that
// NOTIFY_SOCKET names. An address that begins with @ is in the abstract namespace, which package net knows.
func notify(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	defer c.Close()
	_, err = c.Write([]byte(state))
	return err
}
