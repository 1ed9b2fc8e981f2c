/*
 * Ringing the lane's doorbells (nvme_qp.h): one thread of the team stores, all count.
 *
 * The caller's release comes before. It orders SQEs and PRP lists before the SQ doorbell: the controller must not fetch
 * an entry that is still on its way to memory. It orders the loads of CQEs before the CQ doorbell: the controller may
 * overwrite them at once. One release before both serves both; where the loads of CQEs are acquires, they come before the
 * CQ doorbell without it.
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
