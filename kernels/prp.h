/*
 * Physical Region Pages [NVMe 4.1.1]: the addresses of a command's data, page by page.
 *
 * The data is linear in IOVA, so its pages are a base and a count. PRP1 is the first byte's address, at any dword; the
 * other pages start at their beginning. Up to two pages need no list; else PRP2 is the list's address. A list ends at
 * the end of its memory page: if more follows, its last entry is the address where it goes on. Data of a page's length at
 * most, wherever it begins, is what most commands have: that takes a few instructions only.
 */
#ifndef LANEFS_PRP_H
#define LANEFS_PRP_H

#include "device.h"

namespace lanefs {

struct prps {
	uint64_t prp1, prp2;
};

/* How many pages data of len bytes at iova touches besides its first: what PRP1 does not name. */
LANEFS_FN uint64_t more_pages(uint64_t page, uint64_t iova, uint64_t len) {
	uint64_t first = page - (iova & (page - 1));
	return len <= first ? 0 : (len - first + page - 1) >> __builtin_ctzll(page);
}

/* Slots of a list for so many pages, of a list that starts where its current memory page has in_page slots left. */
LANEFS_FN uint64_t list_slots(uint64_t page, uint64_t in_page, uint64_t pages) {
	if (pages <= 1)
		return 0; /* PRP2 names it */
	if (pages <= in_page)
		return pages;
	uint64_t rest = pages - (in_page - 1), each = page / 8 - 1; /* the last entry of a full page is the address where it goes on */
	return in_page + rest + (rest - 2) / each;
}

/*
 * Whether PRPs can describe the data, with a list of list_bytes at list_iova: iova is a dword's, the data does not
 * wrap around, the list is long enough.
 */
LANEFS_FN bool is_addressable(uint64_t list_iova, uint64_t list_bytes, uint64_t page, uint64_t iova, uint64_t len) {
	uint64_t in_page = (page - (list_iova & (page - 1))) / 8;
	return len == 0 || ((iova & 3) == 0 && iova + (len - 1) >= iova &&
		(len <= page || list_slots(page, in_page, more_pages(page, iova, len)) <= list_bytes / 8));
}

/* PRPs for len bytes at iova, a page at most. */
LANEFS_FN prps short_prps(uint64_t page, uint64_t iova, uint64_t len) {
	uint64_t offset = iova & (page - 1);
	return {len == 0 ? 0 : iova, offset + len > page ? iova - offset + page : 0};
}

/*
 * PRPs for len bytes at iova, which are addressable, with pages of `page` bytes as CC.MPS has them. `list`, at list_iova
 * for the controller, is qword-aligned and linear.
 */
LANEFS_FN prps build_prps(uint64_t *list, uint64_t list_iova, uint64_t page, uint64_t iova, uint64_t len) {
	if (len <= page)
		return short_prps(page, iova, len);
	uint64_t entries = more_pages(page, iova, len), next = (iova & ~(page - 1)) + page;
	if (entries == 1)
		return {iova, next};
	prps p = {iova, list_iova};
	uint64_t in_page = (page - (list_iova & (page - 1))) / 8; /* slots up to the end of the list's current page */
	for (uint64_t slot = 0; entries > 0; slot++, in_page--) {
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
