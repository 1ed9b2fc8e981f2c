/*
 * Physical Region Pages [NVMe 4.1.1]: how a command says where its data is, page by page.
 *
 * The data is linear in IOVA, so its pages are a base and a count. PRP1 is the first byte's address, at any dword; the
 * other pages start at their beginning. Up to two pages need no list; else PRP2 is the list's address. A list ends at
 * the end of its memory page: if more follows, its last entry is the address where it goes on.
 */
#ifndef LANEFS_PRP_H
#define LANEFS_PRP_H

#include "device.h"

namespace lanefs {

struct prps {
	uint64_t prp1, prp2;
	bool ok;
};

/*
 * PRPs for len bytes at iova, with pages of `page` bytes as CC.MPS has them. `list`, list_bytes long and at list_iova for
 * the controller, is qword-aligned and linear. ok is false if iova is no dword's, the data wraps around, or the list is
 * too short; then nothing was written outside it.
 */
LANEFS_FN prps build_prps(uint64_t *list, uint64_t list_iova, uint64_t list_bytes, uint64_t page, uint64_t iova, uint64_t len) {
	prps p = {0, 0, true};
	if (len == 0)
		return p;
	if ((iova & 3) != 0 || iova + (len - 1) < iova)
		return {0, 0, false};
	p.prp1 = iova;
	uint64_t first = page - (iova & (page - 1));
	if (len <= first)
		return p;
	uint64_t next = iova + first;
	uint64_t entries = (len - first + page - 1) / page;
	if (entries == 1) {
		p.prp2 = next;
		return p;
	}
	p.prp2 = list_iova;
	uint64_t slots = list_bytes / 8;
	uint64_t in_page = (page - (list_iova & (page - 1))) / 8; /* slots up to the end of the list's current page */
	for (uint64_t slot = 0; entries > 0; slot++, in_page--) {
		if (slot == slots)
			return {0, 0, false};
		if (in_page == 1 && entries > 1) {
			list[slot] = list_iova + 8 * (slot + 1);
			in_page = page / 8 + 1;
			continue;
		}
		list[slot] = next;
		next += page;
		entries--;
	}
	return p;
}

} // namespace lanefs

#endif
