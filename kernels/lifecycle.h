/*
 * The states of a lane, as the CPU sees them: made ready, stepped, run by a resident kernel, parked.
 *
 *     NEW --reset--> READY --step, batch--> READY
 *                      |
 *                   resident                  +------- work was there --------+
 *                      v                      v                               |
 *                   DOZING -- work --> RUNNING --> PARKING -- others run --> DOZING
 *                      |                              |
 *                      +--- the launch is closed -----+--> PARKED --resident--> DOZING
 *
 * One launch runs all lanes of an engine. A lane without work dozes: it stays in the launch, and looks at its ring now and then, at
 * most every `idle` / 32. Who falls asleep last closes the launch: then all lanes leave it, and none wakes any more. So does a lane that
 * is told to park, and one that has run for `limit` ticks.
 *
 * The CPU, having published work for a resident lane, runs a full fence and reads the state: PARKED means launch again, once the
 * launch that was has ended; DOZING and PARKING mean look again. The lane, idle, stores PARKING, runs a full fence and polls the work
 * ring once more. Of the two at least one sees the other's store, so no work is left behind.
 *
 * A lane can be taken out of a launch that runs: with LANEFS_HOLD the lane writes its state back, answers with the number of the
 * hold, and then touches nothing of its own until the hold has ended. Meanwhile lanefs_reset may run on it. Afterwards it reads its
 * state anew.
 */
#ifndef LANEFS_LIFECYCLE_H
#define LANEFS_LIFECYCLE_H

#include "local.h"
#include "step.h"

namespace lanefs {

/* Whether the CPU's layout of a lane is this kernel's. */
LANEFS_FN bool is_ours(const lanefs_lane *lane) {
	return lane->magic == LANEFS_MAGIC && lane->version == LANEFS_VERSION && lane->size == sizeof(lanefs_lane);
}

/* Whether sizes and addresses are ones that a lane can work with. */
LANEFS_FN bool is_sane(const lanefs_lane *lane) {
	uint64_t page = lane->page_size, stride = lane->prp_stride;
	bool powers = lane->ring_size != 0 && (lane->ring_size & (lane->ring_size - 1)) == 0 && page >= 4096 && (page & (page - 1)) == 0;
	bool queues = lane->sq_size <= 65536 && lane->cq_size <= 65536 && lane->cid_count != 0 && lane->cid_count < LANEFS_NO_CID &&
		lane->cid_count < lane->sq_size && lane->cid_count < lane->cq_size;
	bool lists = stride != 0 && (stride & 7) == 0 && (stride < page ? (stride & (stride - 1)) == 0 : (stride & (page - 1)) == 0) &&
		((lane->prp | lane->prp_iova) & (page - 1)) == 0;
	bool aligned = ((lane->sq | lane->cq | lane->work | lane->results | lane->cids | lane->control | lane->status | lane->counters) & 63) == 0 &&
		((lane->sq_doorbell | lane->cq_doorbell) & 3) == 0;
	return powers && queues && lists && aligned;
}

/* Makes the lane ready for a queue pair that is about to be created. What an earlier one left in flight is answered. */
LANEFS_FN void reset(lanefs_lane *lane) {
	if (!is_ours(lane))
		return; /* the address of the status may be wrong too: the state stays LANEFS_NEW */
	lane->ready = 0;
	lanefs_status *status = at<lanefs_status>(lane->status);
	if (!is_sane(lane)) {
		lane->failed = LANEFS_BAD_LANE;
		store(&status->failed, (uint32_t)LANEFS_BAD_LANE);
		store(&status->state, (uint32_t)LANEFS_NEW);
		return;
	}
	uint32_t first_result = lane->result_next;
	answer_in_flight<single>(lane, LANEFS_QUEUE_DEAD);
	lane->cid_head = 0;
	lane->cid_tail = 0;
	for (uint32_t cid = 0; cid < lane->cid_count; cid++) {
		cid_of(lane, cid)->state = LANEFS_CID_FREE;
		cid_of(lane, cid)->free = (uint16_t)cid;
	}
	nvme::init(lane);
	lane->in_flight = 0;
	lane->dead_cids = 0;
	lane->next_deadline = ~0ull;
	lane->failed = LANEFS_OK;
	lane->bad_cid = 0;
	lane->ready = LANEFS_MAGIC;
	store(&status->bad_cid, 0u);
	release(); /* orders results before their seq, and the CQ's zeroes before the state by which the CPU creates the queue */
	publish<single>(lane, first_result);
	report<single>(lane, true, 0);
	store(&status->state, (uint32_t)LANEFS_READY);
}

/* Whether reset() has accepted the lane. */
LANEFS_FN bool is_ready(const lanefs_lane *lane) {
	return is_ours(lane) && lane->ready == LANEFS_MAGIC;
}

/* All together: whether there is work. */
template <typename T> LANEFS_FN bool has_work(lanefs_lane *lane) {
	return broadcast<T>(load(seq_at(lane, 0)), 0) == lane->work_next + 1;
}

/* All together: steps until nothing is in flight and no work is left, or `ticks` have passed. */
template <typename T> LANEFS_FN void batch(lanefs_lane *lane, uint64_t ticks) {
	uint64_t start = time<T>(), now = start;
	do {
		uint32_t command;
		if (!step<T>(lane, &now, 1, &command))
			pause(0);
		now = time<T>();
	} while ((lane->in_flight != 0 || has_work<T>(lane)) && now - start < ticks);
	report<T>(lane, true, now);
}

template <typename T> LANEFS_FN void set_state(lanefs_status *status, uint32_t state) {
	if (self<T>() == 0)
		store(&status->state, state);
}

/* Of `idle` being 2 ms, a heartbeat every 31 µs. */
constexpr uint64_t heartbeats = 64;

template <typename T> LANEFS_FN void heartbeat(lanefs_status *status, uint64_t now) {
	if (self<T>() == 0)
		store(&status->time, now);
}

/* Polls without success before a resident lane reports and pauses. */
constexpr uint32_t polls_before_pause = 16;

/* How long a resident lane pauses between polls: of `idle` being 2 ms, at most 16 µs, and 1 µs while it waits for work only. */
LANEFS_FN uint64_t pause_ticks(const lanefs_lane *lane, uint64_t waited, uint64_t idle) {
	uint64_t most = idle / (lane->in_flight != 0 ? 128 : 2048);
	return waited / 16 < most ? waited / 16 : most;
}

/* A launch, as one of its lanes knows it. */
struct launch {
	uint64_t *word;  /* in the device's memory: what follows */
	uint64_t number; /* of the launch, in the upper half */
	uint64_t start, idle, limit;
	uint64_t doze; /* between two looks of a lane that dozes, at most */
};

/*
 * The word of a launch has its number in the upper half; in the lower how many lanes are awake, and whether it is closed. One with an
 * earlier number is from an earlier launch, and means that nobody is awake.
 */
constexpr uint64_t launch_closed = 1ull << 31, launch_awake = launch_closed - 1;

LANEFS_FN launch launch_of(uint64_t word, uint64_t number, uint64_t start, uint64_t idle, uint64_t limit, uint64_t lanes) {
	/* Dozing lanes take four polls a microsecond of the bus, all together; but each looks every 62 µs, of `idle` being 2 ms. */
	uint64_t doze = idle / 8192 * lanes, least = idle / 2048, most = idle / 32;
	doze = doze < least ? least : doze > most ? most : doze;
	return {at<uint64_t>(word), number << 32, start, idle, limit, doze};
}

LANEFS_FN uint64_t word_now(const launch *l, uint64_t word) { return (word ^ l->number) >> 32 == 0 ? word : l->number; }

/* What a lane does to the word. A closed launch stays as it is. */
enum launch_change {
	WAKE,       /* one lane more is awake */
	REST,       /* one fewer */
	DOZE,       /* one fewer; the last closes the launch */
	CLOSE,      /* closes it */
	CLOSE_IDLE, /* closes it if nobody is awake */
};

/* All together: changes the word, and returns whether the launch is closed now. Nothing else is ordered by it. */
template <typename T, launch_change how> LANEFS_FN bool change(const launch *l) {
	uint32_t closed = 0;
	if (self<T>() == 0) {
		uint64_t seen = load_device(l->word), next;
		do {
			next = word_now(l, seen);
			if ((next & launch_closed) == 0) {
				bool last = (next & launch_awake) == (how == DOZE ? 1 : 0);
				next = how == WAKE ? next + 1 : how == REST || how == DOZE ? next - 1 : next;
				if (how == CLOSE || ((how == DOZE || how == CLOSE_IDLE) && last))
					next |= launch_closed;
			}
		} while (next != seen && !compare_exchange_device(l->word, &seen, next));
		closed = (next & launch_closed) != 0;
	}
	return broadcast<T>(closed, 0) != 0;
}

/* What a resident lane remembers from one turn to the next. */
enum phase : uint8_t {
	AWAY,   /* the lane is the CPU's: it is held, or was never made ready */
	ASLEEP, /* nothing to do: looks now and then */
	AWAKE,  /* steps */
	GONE,   /* has left the launch */
};
struct LANEFS_ALIAS life {
	uint64_t busy;              /* when it last had something to do */
	uint64_t moved;             /* when it last made progress; asleep, when it last looked */
	uint64_t reported, beat;    /* when it last did */
	uint32_t empty;             /* steps without progress, in a row */
	uint32_t held : 24, unreported : 1, at : 3; /* the number of the hold that was answered; progress since the last report; enum phase */
};
static_assert(sizeof(life) <= sizeof(lanefs_lane::reserved1), "on a CPU it is there");

LANEFS_FN life born(const launch *l) { return {l->start, l->start - l->idle, l->start, l->start, 0, 0, 0, AWAY}; }

/* All together: an acquire of what one thread has loaded, for all, and a release of what any has stored. */
template <typename T> LANEFS_FN void acquire_all() {
	sync_team<T>();
	acquire();
	sync_team<T>();
}

/* How a turn ends. */
enum ending {
	STAY,
	LEAVE, /* the launch */
	YIELD, /* the lane to the CPU, which holds it */
	END,   /* leave a lane that is the CPU's: nothing of it is touched */
};

/*
 * All together: a turn of a lane that is not awake. It looks at the control word, at the launch, and, unless the CPU has the lane, at
 * the ring.
 */
template <typename T> LANEFS_FN ending look(lanefs_lane *p, lanefs_lane *lane, life *s, const launch *l) {
	uint64_t now = time<T>(), waited = (now - s->busy) / 16, pause_for = waited < l->doze ? waited : l->doze;
	if (now - s->moved < pause_for) { /* several lanes take turns on a CPU */
		pause(0);
		return STAY;
	}
	s->moved = now;
	lanefs_status *status = at<lanefs_status>(lane->status);
	bool mine = s->at == ASLEEP, wake = false;
	uint32_t seq = mine ? load(seq_at(lane, 0)) : 0;
	uint32_t command = load(&at<lanefs_control>(lane->control)->command);
	uint64_t word = word_now(l, load_device(l->word));
	command = broadcast<T>(command, 0);
	word = broadcast<T>(word, 0);
	bool closed = (word & launch_closed) != 0;
	if (LANEFS_COMMAND(command) == LANEFS_PARK || now - l->start >= l->limit)
		closed = change<T, CLOSE>(l);
	if (closed && !mine && (command & LANEFS_HOLD) == 0) {
		acquire_all<T>(); /* orders the load of the command before that of whether the lane is ready, which lanefs_reset may have changed */
		if (broadcast<T>((uint32_t)is_ready(p), 0) != 0)
			set_state<T>(status, LANEFS_PARKED); /* it has not been read, and is not stored */
	}
	if (closed)
		return mine ? LEAVE : END;
	if ((command & LANEFS_HOLD) != 0) {
		if (mine)
			return YIELD; /* and answer at the next look */
		if (s->held != command >> 8) {
			s->held = command >> 8;
			sync_team<T>();
			release(); /* orders all that the lane has done before the answer: then the lane is the CPU's */
			if (self<T>() == 0)
				store(&status->held, command >> 8);
		}
	} else if (mine) {
		wake = broadcast<T>(seq, 0) == lane->work_next + 1;
	} else {
		acquire_all<T>(); /* orders the load of the command before those of the lane, which lanefs_reset may have changed */
		if (broadcast<T>((uint32_t)is_ready(p), 0) != 0) {
			LANEFS_RELOAD(T, lane, p);
			s->at = ASLEEP;
			mine = true;
			/* After a hold, completions may come of commands that have timed out. */
			wake = s->held != 0 || outstanding(lane) != 0 || has_work<T>(lane);
			s->held = 0;
			set_state<T>(status, LANEFS_DOZING);
		}
	}
	bool tired = now - s->busy >= l->idle && (word & launch_awake) == 0;
	if (mine && !wake && tired) {
		set_state<T>(status, LANEFS_PARKING);
		full(); /* orders the store of PARKING before the load of the next seq */
		sync_team<T>();
		wake = has_work<T>(lane);
		if (!wake && !change<T, CLOSE_IDLE>(l))
			set_state<T>(status, LANEFS_DOZING);
		else if (!wake)
			return LEAVE;
	} else if (!mine && tired) {
		change<T, CLOSE_IDLE>(l); /* and leave at the next look */
	}
	if (wake) {
		if (change<T, WAKE>(l))
			return LEAVE;
		set_state<T>(status, LANEFS_RUNNING);
		s->busy = s->reported = s->moved = now;
		s->unreported = 0;
		s->empty = 0;
		s->at = AWAKE;
	}
	if (mine) {
		heartbeat<T>(status, now);
		s->beat = now;
	}
	if (!wake)
		pause(pause_for);
	return STAY;
}

/*
 * All together: a step of a lane that is awake, and what follows from it. A report takes time and stores over PCIe, so the lane makes
 * one after some steps in a row with nothing to do, when it leaves, and at least every `idle` ticks. The clock in it is a heartbeat,
 * stored more often: by it the CPU sees early that the device runs something else. The lane pauses between polls only after such steps,
 * for a part of the time that has passed since the last progress: polls of many lanes take of the bus what data could have.
 */
template <typename T> LANEFS_FN ending run(lanefs_lane *lane, life *s, const launch *l) {
	constexpr uint32_t tries = T::one_load ? 4 : 1, max_empty = polls_before_pause / tries;
	lanefs_status *status = at<lanefs_status>(lane->status);
	uint32_t command;
	uint64_t now = time<T>();
	bool progress = step<T>(lane, &now, tries, &command), closed = false;
	s->unreported = s->unreported || progress;
	s->empty = progress ? 0 : s->empty + 1;
	s->moved = progress ? now : s->moved;
	if (progress || lane->in_flight != 0)
		s->busy = now;
	if (now - s->beat >= l->idle / heartbeats) {
		heartbeat<T>(status, now);
		s->beat = now;
		closed = (broadcast<T>(word_now(l, load_device(l->word)), 0) & launch_closed) != 0;
	}
	if ((s->unreported && lane->in_flight == 0 && s->empty >= max_empty) || now - s->reported >= l->idle) {
		report<T>(lane, s->unreported, now);
		s->reported = now;
		s->unreported = 0;
	}
	bool must = closed || LANEFS_COMMAND(command) == LANEFS_PARK || now - l->start >= l->limit, held = (command & LANEFS_HOLD) != 0;
	if (must || held || now - s->busy >= l->idle) {
		set_state<T>(status, LANEFS_PARKING);
		full(); /* orders the store of PARKING before the load of the next seq */
		sync_team<T>();
		bool stay = !must && !held && has_work<T>(lane);
		if (must) {
			change<T, CLOSE>(l);
			return LEAVE;
		}
		if (held) {
			change<T, REST>(l);
			return YIELD;
		}
		if (stay) {
			set_state<T>(status, LANEFS_RUNNING);
			s->busy = now;
		} else if (change<T, DOZE>(l)) {
			return LEAVE;
		} else {
			set_state<T>(status, LANEFS_DOZING);
			s->at = ASLEEP;
		}
	}
	if (s->empty >= max_empty)
		pause(pause_ticks(lane, now - s->moved, l->idle));
	return STAY;
}

/* All together: a turn of a resident lane. Returns false when it has left. */
template <typename T> LANEFS_FN bool turn(lanefs_lane *p, lanefs_lane *lane, life *s, const launch *l) {
	ending how = s->at == AWAKE ? run<T>(lane, s, l) : look<T>(p, lane, s, l);
	if (how == STAY)
		return true;
	if (how == END)
		return false;
	report<T>(lane, true, time<T>());
	sync_team<T>(); /* all have read the lane, which may have been just now */
	write_back<T>(p, lane);
	sync_team<T>();
	release(); /* orders the lane's state before PARKED: the next launch of the lane reads it */
	set_state<T>(at<lanefs_status>(lane->status), LANEFS_PARKED);
	s->at = AWAY;
	return how == YIELD;
}

#if defined(LANEFS_COPIES)

/* All together: the resident lane at p, if it is one, until it leaves the launch. */
template <typename T> LANEFS_FN void live(lanefs_lane *p, const launch *l) {
	if (!is_ours(p))
		return;
	LANEFS_LOCAL(T, lane, p);
	life s = born(l);
	while (turn<T>(p, &lane, &s, l))
		;
}

#else

/* On a CPU the lanes of a launch take turns on its one thread. */
LANEFS_FN life *life_of(lanefs_lane *lane) { return (life *)lane->reserved1; }

template <typename T> LANEFS_FN void live_together(lanefs_lane *first, uint64_t lanes, const launch *l) {
	uint64_t left = 0;
	for (uint64_t i = 0; i < lanes; i++) {
		life *s = life_of(first + i);
		*s = born(l);
		if (is_ours(first + i))
			left++;
		else
			s->at = GONE;
	}
	while (left != 0)
		for (uint64_t i = 0; i < lanes; i++) {
			life *s = life_of(first + i);
			if (s->at != GONE && !turn<T>(first + i, first + i, s, l)) {
				s->at = GONE;
				left--;
			}
		}
}

#endif

} // namespace lanefs

#endif
