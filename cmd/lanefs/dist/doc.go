// Package dist has what systems need beside the binary: systemd's units, and what Debian packages are made of.
//
// `make deb` makes the packages: lanefs, liblanefs1 and liblanefs-dev (the C SDK), python3-lanefs. `make deb-test` installs, upgrades and
// removes them in a fresh Debian, `make boot-test` boots one in a virtual machine with mounts by /etc/fstab and units.
package dist
