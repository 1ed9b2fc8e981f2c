package softctl

import "encoding/binary"

// PRP entries ([BASE] 4.1.1): the first may point anywhere in a page, at a multiple of four; every other data pointer
// points at the beginning of a page. PRP2 points at a second page, or at a list when more than two pages are needed. A
// list's pointer may point anywhere in a page, at a multiple of eight; where the entries reach the end of the list's
// page and more than one is still needed, the last one points at the next list, which begins a page.
//
// What a transfer needs bounds the walk: a list page gives at least one data page, except a first list that has only
// its last entry, and the next then gives a whole page of them.

// walkPRP finds the n bytes that prp1 and prp2 describe and appends them to v.
func (s *addressSpace) walkPRP(v *vector, prp1, prp2 uint64, n, page int64) Status {
	t := s.table.Load()
	mask := uint64(page - 1)
	var hint *region
	data := func(prp uint64, n int64) Status {
		r, o, ok := t.find(prp, uint64(n), &hint)
		if !ok {
			return dataTransferError
		}
		v.add(r, o, n)
		return success
	}

	if prp1&3 != 0 {
		return invalidPRPOffset
	}
	first := min(n, page-int64(prp1&mask))
	if st := data(prp1, first); st != success {
		return st
	}
	if n -= first; n == 0 {
		return success // PRP2 is reserved
	}
	if n <= page {
		if prp2&mask != 0 {
			return invalidPRPOffset
		}
		return data(prp2, n)
	}

	if prp2&7 != 0 {
		return invalidPRPOffset
	}
	// Most entries name the page behind the one before, in the same region: they make the piece longer, without a search.
	next, end := uint64(0), uint64(0) // of that page and of the region; equal: nothing follows
	buf := v.prps[:]
	for list := prp2; ; {
		entries := (page - int64(list&mask)) / 8
		need := (n + page - 1) / page
		chained := need > entries
		take := min(need, entries)
		if chained {
			take-- // the last one points on
		}
		for take > 0 {
			k := min(take, int64(len(buf)/8))
			if !s.read(buf[:8*k], list) {
				return dataTransferError
			}
			for i := range k {
				prp, size := binary.LittleEndian.Uint64(buf[8*i:]), min(n, page)
				n -= size
				if prp == next && uint64(size) <= end-next {
					v.pieces[len(v.pieces)-1].n += size
					v.n += size
					next += uint64(size)
					continue
				}
				if prp&mask != 0 {
					return invalidPRPOffset
				}
				if st := data(prp, size); st != success {
					return st
				}
				next, end = prp+uint64(size), hint.base+hint.size
			}
			list += uint64(8 * k)
			take -= k
		}
		if !chained {
			return success
		}
		if !s.read(buf[:8], list) {
			return dataTransferError
		}
		list = binary.LittleEndian.Uint64(buf)
		if list&mask != 0 {
			return invalidPRPOffset
		}
	}
}
