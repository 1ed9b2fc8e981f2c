package nvme

// IOVA is an address as the controller sees it.
type IOVA uint64
