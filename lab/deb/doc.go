// Package deb tries LaneFS's Debian packages. test installs, uses, upgrades and removes them in a fresh Debian, below a chroot: make
// deb-test. boot starts a virtual machine with systemd, in which /etc/fstab, units and lanefs-bind@ mount at boot: make boot-test.
//
// root makes that Debian by mmdebstrap and keeps it in the cache. Neither is a part of make test.
package deb
