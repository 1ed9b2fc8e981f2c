/*
 * Ringing a doorbell [NVMe 3.1.3.14, 3.1.3.15]: one plain 32-bit store, never a read-modify-write. The address is a
 * register in the controller's BAR, or a word that a bridge forwards.
 *
 * The store orders nothing by itself. Before the SQ doorbell the caller has released its SQEs and PRP lists: the
 * controller must not fetch an entry that is still on its way to memory. Before the CQ doorbell it has finished reading
 * the CQEs that it gives back: the controller may overwrite them at once. One release() before both serves both; where the
 * loads of CQEs are acquires, they come before the CQ doorbell without it.
 */
#ifndef LANEFS_RING_H
#define LANEFS_RING_H

#include "team.h"

namespace lanefs {

template <typename T> LANEFS_FN void ring_sq(lanefs_lane *lane) {
	if (self<T>() == 0)
		nvme::store_sq_doorbell(lane);
	lane->totals.sq_doorbells++;
}

template <typename T> LANEFS_FN void ring_cq(lanefs_lane *lane) {
	if (self<T>() == 0)
		nvme::store_cq_doorbell(lane);
	lane->totals.cq_doorbells++;
}

} // namespace lanefs

#endif
