package kernels

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unsafe"
)

// Paths through a kernel of PTX. A release that hangs on a condition is right where what needs it hangs on the same one: so it is
// followed what each path knows of conditions, and paths that contradict themselves are left out. Where paths meet, those in the same
// state of what is checked become one, which knows what all of them know (Das, Lerner, Seigle: ESP, PLDI 2002).

// fact is one thing that a path can know: that a predicate holds, or that a comparison of two registers or of a register and a number does.
type fact struct {
	how  string // "" for a predicate, "eq", "ltu", "lts"
	a, b string
}

// truth of a fact on a path.
type truth int8

const (
	unknown truth = iota
	yes
	no
)

func (t truth) not() truth { return [...]truth{unknown, no, yes}[t] }

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

// ptxPaths is a kernel to be followed.
type ptxPaths struct {
	all    []ptxInstruction
	values *ptxValues
	wave   bool // all threads of a wave go these paths together
	facts  map[fact]int
	by     []fact
	about  map[string][]int // the facts about a register
	// Registers that are computed of others so that something can be told from them: predicates, minima.
	told   map[string]int
	uses   map[string][]int // of told, those that are computed of a register
	spoils []spoiled        // of each instruction
	live   [][]bool         // before an instruction, the flags of which a later one asks
	flags  []string         // predicates that are set to a constant somewhere: variables of the source
	counts map[string]bool  // registers that only ever hold how many there are of something
	bases  []string         // registers through which memory is accessed that are addresses of one thing here and of another there
	baseAt map[string]int
}

// knowledge is what a path knows.
type knowledge struct {
	facts []truth
	how   []int // for each of told, the instruction that has set it last, plus one, as long as what it was computed of is unchanged
}

func (k *knowledge) clone() *knowledge { return &knowledge{slices.Clone(k.facts), slices.Clone(k.how)} }

// join keeps what both know, and says whether k knows less than before.
func (k *knowledge) join(q *knowledge) (changed bool) {
	for i, t := range q.facts {
		if k.facts[i] != unknown && k.facts[i] != t {
			k.facts[i], changed = unknown, true
		}
	}
	for i, h := range q.how {
		if k.how[i] != 0 && k.how[i] != h {
			k.how[i], changed = 0, true
		}
	}
	return changed
}

// spoiled is what is not known any more after an instruction: facts, and how registers came about.
type spoiled struct{ facts, told []int }

// comparison is what a setp compares, as a fact or its opposite.
func (p *ptxPaths) comparison(in *ptxInstruction) (f fact, opposite, ok bool) {
	parts := strings.Split(in.op, ".")
	if in.name != "setp" || len(parts) != 3 || len(in.from) != 2 {
		return
	}
	a, b := p.constant(in.from[0]), p.constant(in.from[1])
	less := "lt" + parts[2][:1]
	switch parts[1] {
	case "eq", "ne":
		return equal(a, b), parts[1] == "ne", true
	case "lt":
		f = fact{less, a, b}
	case "ge":
		f, opposite = fact{less, a, b}, true
	case "gt":
		f = fact{less, b, a}
	case "le":
		f, opposite = fact{less, b, a}, true
	default:
		return
	}
	return f, opposite, parts[2][0] == 'u' || parts[2][0] == 's'
}

// constant is the number that a register always is, else the register.
func (p *ptxPaths) constant(r string) string {
	if c, ok := p.values.is[r]; ok {
		return c
	}
	return r
}

func equal(a, b string) fact { return fact{"eq", min(a, b), max(a, b)} }

func number(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 0, 64)
	return n, err == nil && !strings.HasPrefix(s, "%")
}

func ptxPathsOf(all []ptxInstruction, values *ptxValues, wave bool) *ptxPaths {
	p := &ptxPaths{all: all, values: values, wave: wave, facts: map[fact]int{}, about: map[string][]int{}, told: map[string]int{}, uses: map[string][]int{}, baseAt: map[string]int{}}
	add := func(f fact) bool {
		if _, ok := p.facts[f]; ok || f.a == f.b && f.how != "" {
			return false
		}
		i := len(p.by)
		p.facts[f] = i
		p.by = append(p.by, f)
		for _, r := range []string{f.a, f.b} {
			if strings.HasPrefix(r, "%") {
				p.about[r] = append(p.about[r], i)
			}
		}
		return true
	}
	for i := range all {
		in := &all[i]
		for _, r := range in.into {
			if strings.HasPrefix(r, "%p") {
				add(fact{a: r})
			}
		}
		if f, _, ok := p.comparison(in); ok {
			add(f)
			if strings.HasPrefix(f.how, "lt") {
				add(equal(f.b, "0"))
			}
		}
		if in.name == "st" && len(in.from) == 1 && strings.HasPrefix(in.from[0], "%r") && values.of[in.base]&aStatus != 0 { // which state it may be
			for state := range int(StateDozing) + 1 {
				add(equal(in.from[0], strconv.Itoa(state)))
			}
		}
		switch in.op {
		case "and.pred", "or.pred", "not.pred", "mov.pred", "min.u32", "min.u64", "or.b32":
		default:
			if in.name != "setp" {
				continue
			}
		}
		r := in.into[0]
		if _, ok := p.told[r]; !ok {
			p.told[r] = len(p.told)
		}
		for _, from := range in.from {
			if strings.HasPrefix(from, "%") && !slices.Contains(p.uses[from], p.told[r]) {
				p.uses[from] = append(p.uses[from], p.told[r])
			}
		}
	}
	// What is asked of a minimum or of a copy can be told of what it is of.
	for more := true; more; {
		more = false
		for i := range all {
			in := &all[i]
			if in.name != "mov" && in.name != "selp" && in.name != "min" && in.op != "add.s32" && in.op != "or.b32" || len(in.into) != 1 {
				continue
			}
			for _, k := range slices.Clone(p.about[in.into[0]]) {
				f := p.by[k]
				other := f.a
				if f.a == in.into[0] {
					other = f.b
				}
				if _, isNumber := number(other); f.how != "eq" || !isNumber || (in.name == "add" || in.name == "or") && other != "0" {
					continue
				}
				for _, from := range in.from {
					if strings.HasPrefix(from, "%r") && add(equal(p.constant(from), other)) {
						more = true
					}
				}
			}
		}
	}
	used := map[string]bool{}
	for i := range all {
		used[all[i].base] = true
	}
	for r, of := range values.of {
		if of&(of-1) != 0 && used[r] {
			p.bases = append(p.bases, r)
		}
	}
	slices.Sort(p.bases)
	for i, r := range p.bases {
		p.baseAt[r] = i
	}
	p.findFlags()
	p.findCounts()
	for i := range all {
		var s spoiled
		for _, r := range all[i].into {
			s.facts, s.told = append(s.facts, p.about[r]...), append(s.told, p.uses[r]...)
			if n, ok := p.told[r]; ok {
				s.told = append(s.told, n)
			}
		}
		p.spoils = append(p.spoils, s)
	}
	return p
}

// truth of a fact, as far as the path knows it.
func (p *ptxPaths) truth(k *knowledge, f fact) truth {
	if i, ok := p.facts[f]; ok && k.facts[i] != unknown {
		return k.facts[i]
	}
	a, aIs := number(f.a)
	b, bIs := number(f.b)
	switch {
	case f.how == "":
		return unknown
	case f.a == f.b:
		return truthOf(f.how == "eq")
	case aIs && bIs && f.how == "eq":
		return truthOf(a == b)
	case aIs && bIs && f.how == "lts":
		return truthOf(a < b)
	case aIs && bIs && f.how == "ltu" && a >= 0 && b >= 0:
		return truthOf(a < b)
	case f.how == "ltu" && f.b == "0", f.how == "ltu" && p.truth(k, equal(f.b, "0")) == yes:
		return no
	}
	return unknown
}

// holds is whether a predicate does, as far as the path knows it.
func (p *ptxPaths) holds(k *knowledge, r string) truth {
	switch r {
	case "0":
		return no
	case "-1":
		return yes
	}
	if t := p.truth(k, fact{a: r}); t != unknown {
		return t
	}
	in := p.setBy(k, r)
	if in == nil {
		return unknown
	}
	switch in.op {
	case "mov.pred":
		return p.holds(k, in.from[0])
	case "not.pred":
		return p.holds(k, in.from[0]).not()
	case "and.pred", "or.pred":
		a, b := p.holds(k, in.from[0]), p.holds(k, in.from[1])
		decides := truthOf(in.op == "or.pred")
		switch {
		case a == decides || b == decides:
			return decides
		case a == decides.not() && b == decides.not():
			return decides.not()
		}
		return unknown
	}
	f, opposite, ok := p.comparison(in)
	if !ok {
		return unknown
	}
	if opposite {
		return p.truth(k, f).not()
	}
	return p.truth(k, f)
}

// setBy is the instruction that has computed a register of what is still there.
func (p *ptxPaths) setBy(k *knowledge, r string) *ptxInstruction {
	if i, ok := p.told[r]; ok && k.how[i] != 0 {
		return &p.all[k.how[i]-1]
	}
	return nil
}

// learn notes that a fact holds or not, and what follows from it. It returns false if that contradicts what the path knows.
func (p *ptxPaths) learn(k *knowledge, f fact, t truth) bool {
	if was := p.truth(k, f); was != unknown {
		if was != t {
			return false
		}
	}
	if i, ok := p.facts[f]; ok {
		k.facts[i] = t
	}
	switch {
	case f.how == "ltu" && t == yes: // nothing is less than 0
		return p.learn(k, equal(f.b, "0"), no)
	case f.how == "eq" && t == no && (f.a == "0" || f.b == "0"): // nor is the lesser of two without both being more
		of := f.a
		if of == "0" {
			of = f.b
		}
		if in := p.setBy(k, of); in != nil && in.name == "min" {
			for _, r := range in.from {
				if !p.learn(k, equal(p.constant(r), "0"), no) {
					return false
				}
			}
		}
	case f.how == "eq" && t == yes && (f.a == "0" || f.b == "0"): // an or is 0 if both are
		of := f.a
		if of == "0" {
			of = f.b
		}
		if in := p.setBy(k, of); in != nil && in.op == "or.b32" {
			return p.learn(k, equal(p.constant(in.from[0]), "0"), yes) && p.learn(k, equal(p.constant(in.from[1]), "0"), yes)
		}
	case f.how == "":
		in := p.setBy(k, f.a)
		if in == nil {
			return true
		}
		switch {
		case in.op == "mov.pred" && strings.HasPrefix(in.from[0], "%"):
			return p.learn(k, fact{a: in.from[0]}, t)
		case in.op == "not.pred":
			return p.learn(k, fact{a: in.from[0]}, t.not())
		case in.op == "and.pred" && t == yes, in.op == "or.pred" && t == no:
			return p.learn(k, fact{a: in.from[0]}, t) && p.learn(k, fact{a: in.from[1]}, t)
		case in.op == "and.pred", in.op == "or.pred":
			for i, r := range in.from { // one decides if the other does not
				if p.holds(k, r) == t.not() {
					return p.learn(k, fact{a: in.from[1-i]}, t)
				}
			}
		default:
			if c, opposite, ok := p.comparison(in); ok {
				if opposite {
					t = t.not()
				}
				return p.learn(k, c, t)
			}
		}
	}
	return true
}

// set changes what is known by an instruction that writes registers.
func (p *ptxPaths) set(k *knowledge, i int) {
	in := &p.all[i]
	if len(p.spoils[i].facts)+len(p.spoils[i].told) == 0 {
		return
	}
	r := in.into[0]
	// What is known of the new value, by what was known before.
	var news []truth
	source, other := "", "" // one of two, if other is set
	switch {
	case in.name == "mov" && len(in.into) == 1 && len(in.from) == 1:
		source = p.constant(in.from[0])
	case in.name == "selp":
		switch p.holds(k, in.from[2]) {
		case yes:
			source = p.constant(in.from[0])
		case no:
			source = p.constant(in.from[1])
		default:
			source, other = p.constant(in.from[0]), p.constant(in.from[1])
		}
	}
	sum := unknown // whether it is 0
	if in.op == "add.s32" && p.counts[in.from[0]] && p.counts[in.from[1]] {
		a, b := p.truth(k, equal(in.from[0], "0")), p.truth(k, equal(in.from[1], "0"))
		if a == no || b == no {
			sum = no
		} else if a == yes && b == yes {
			sum = yes
		}
	}
	of := func(f fact, source string) truth {
		switch {
		case f.how == "":
			return p.holds(k, source)
		case f.a == r:
			return p.truth(k, ordered(f.how, source, f.b))
		}
		return p.truth(k, ordered(f.how, f.a, source))
	}
	if source != "" {
		for _, n := range p.about[r] {
			t := of(p.by[n], source)
			if other != "" && of(p.by[n], other) != t {
				t = unknown
			}
			news = append(news, t)
		}
	}
	for _, n := range p.spoils[i].facts {
		k.facts[n] = unknown
	}
	for _, n := range p.spoils[i].told {
		k.how[n] = 0
	}
	for n, t := range news {
		k.facts[p.about[r][n]] = t
	}
	if in.name == "ld" && p.values.of[in.base] == aLane {
		for n, w := range in.into {
			if f, ok := p.facts[equal(w, "0")]; ok && positive[p.values.offset(in, aLane)+n*in.width()] {
				k.facts[f] = no
			}
		}
	}
	if n, ok := p.facts[equal(r, "0")]; ok && sum != unknown {
		k.facts[n] = sum
	}
	if source != "" && other == "" && !slices.Contains(in.into, source) {
		if n, ok := p.facts[equal(r, source)]; ok {
			k.facts[n] = yes
		}
	}
	if n, ok := p.told[r]; ok && !slices.Contains(in.from, r) {
		switch {
		case in.name == "setp", strings.HasSuffix(in.op, ".pred"), in.name == "min", in.op == "or.b32":
			k.how[n] = i + 1
		}
		if strings.HasPrefix(r, "%p") {
			k.facts[p.facts[fact{a: r}]] = p.holds(k, r)
		}
	}
}

// positive are the fields of a lane that are not 0, by their offsets: lanefs_reset accepts no other lane.
var positive = map[int]bool{int(unsafe.Offsetof(Lane{}.RingSize)): true, int(unsafe.Offsetof(Lane{}.CidCount)): true}

func ordered(how, a, b string) fact {
	if how == "eq" {
		return equal(a, b)
	}
	return fact{how, a, b}
}

// where is a state of what is checked, and what keeps paths apart besides: what the bases are addresses of, and the flags.
type where struct {
	state int
	bases string
	flags string
}

// flagsAt is what a path knows of the flags that matter from an instruction on.
func (p *ptxPaths) flagsAt(k *knowledge, i int) string {
	var b []byte
	for n, r := range p.flags {
		if p.live[i][n] {
			b = append(b, "?10"[p.holds(k, r)])
		}
	}
	return string(b)
}

// findFlags finds them, and where each matters.
func (p *ptxPaths) findFlags() {
	sets, constant := map[string]int{}, map[string]bool{}
	for i := range p.all {
		in := &p.all[i]
		if len(in.into) > 0 && strings.HasPrefix(in.into[0], "%p") {
			sets[in.into[0]]++
			if in.name == "mov" && (in.from[0] == "0" || in.from[0] == "-1") {
				constant[in.into[0]] = true
			}
		}
	}
	for r := range constant {
		if sets[r] > 1 {
			p.flags = append(p.flags, r)
		}
	}
	slices.Sort(p.flags)
	p.live = make([][]bool, len(p.all))
	for i := range p.live {
		p.live[i] = make([]bool, len(p.flags))
	}
	for changed := true; changed; {
		changed = false
		for i := len(p.all) - 1; i >= 0; i-- {
			in := &p.all[i]
			for f, r := range p.flags {
				live := in.guard == r || slices.Contains(in.from, r)
				if !live && !slices.Contains(in.into, r) {
					for _, n := range in.next {
						live = live || p.live[n][f]
					}
				}
				if live && !p.live[i][f] {
					p.live[i][f], changed = true, true
				}
			}
		}
	}
}

// findCounts finds the registers that hold 0, or a number of bits, or a sum or the least of such. None is so large that a sum of them wraps.
func (p *ptxPaths) findCounts() {
	p.counts = map[string]bool{}
	for i := range p.all {
		for _, r := range p.all[i].into {
			p.counts[r] = true
		}
	}
	count := func(r string) bool {
		n, isNumber := number(p.constant(r))
		return p.counts[r] || isNumber && n >= 0 && n < 1<<16
	}
	for changed := true; changed; {
		changed = false
		for i := range p.all {
			in := &p.all[i]
			is := false
			switch in.name {
			case "popc":
				is = true
			case "mov", "cvt", "add":
				is = len(in.into) == 1 && !slices.ContainsFunc(in.from, func(r string) bool { return !count(r) })
			case "selp":
				is = count(in.from[0]) && count(in.from[1])
			case "min":
				is = strings.Contains(in.op, ".u") && slices.ContainsFunc(in.from, count)
			}
			for _, r := range in.into {
				if !is && p.counts[r] {
					p.counts[r], changed = false, true
				}
			}
		}
	}
}

// others is the poll that the branch at i goes round, if that is all that it does: threads of a wave that have no slot to look at take it,
// while the others poll. What they find is there for all that comes after.
func (p *ptxPaths) others(i int) *ptxInstruction {
	var poll *ptxInstruction
	for n := i + 1; p.wave && n < p.all[i].next[0]; n++ {
		switch in := &p.all[n]; {
		case in.name == "ld" && poll == nil && (in.is("volatile") || in.is("sys")):
			poll = in
		case memory[in.name] || in.name == "bra" || in.name == "ret" || in.name == "vote" || in.name == "shfl" || in.name == "match":
			return nil
		}
	}
	return poll
}

// memory has the instructions that have to do with it.
var memory = map[string]bool{"ld": true, "st": true, "atom": true, "red": true, "fence": true, "membar": true, "bar": true}

// walk follows all paths. check gets an instruction, the thing that its memory operand addresses, what the path knows, and the state
// before it, and returns the state after it; start is the first.
func (p *ptxPaths) walk(start int, check func(in *ptxInstruction, of thing, k *knowledge, state int) (int, error)) error {
	starts := map[int]bool{0: true}
	for i := range p.all {
		if len(p.all[i].next) != 1 || p.all[i].name == "bra" {
			for _, n := range p.all[i].next {
				starts[n] = true
			}
		}
	}
	type node struct {
		at int
		where
	}
	before := map[node]*knowledge{}
	none := strings.Repeat("-,", len(p.bases))
	first := node{0, where{start, none, ""}}
	before[first] = &knowledge{make([]truth, len(p.by)), make([]int, len(p.told))}
	// Earlier blocks first, so that a path meets the others before it goes on.
	work, queued := map[int][]node{0: {first}}, map[node]bool{first: true}
	for len(work) > 0 {
		next := slices.Min(slices.Collect(maps.Keys(work)))
		n := work[next][0]
		if work[next] = work[next][1:]; len(work[next]) == 0 {
			delete(work, next)
		}
		queued[n] = false
		k := before[n].clone()
		w := n.where
		follow := func(to int, k *knowledge) {
			w.flags = p.flagsAt(k, to)
			next := node{to, w}
			if was := before[next]; was == nil {
				before[next] = k
			} else if !was.join(k) {
				return
			}
			if !queued[next] {
				queued[next] = true
				work[to] = append(work[to], next)
			}
		}
		for i := n.at; ; {
			in := &p.all[i]
			apply := func(in *ptxInstruction) (err error) {
				of := p.values.of[in.base]
				if b, ok := p.baseAt[in.base]; ok {
					of = baseOf(w.bases, b)
				}
				if w.state, err = check(in, of, k, w.state); err != nil {
					err = fmt.Errorf("line %d: %w: %s", in.line, err, in.text)
				}
				return err
			}
			if memory[in.name] {
				if err := apply(in); err != nil {
					return err
				}
			}
			if len(p.bases) > 0 {
				for k, r := range in.into {
					if b, ok := p.baseAt[r]; ok {
						w.bases = p.setBase(w.bases, b, in, k)
					}
				}
			}
			if in.name == "bra" && in.guard != "" {
				for taken := range 2 {
					t := truthOf((taken == 0) != in.unless)
					if p.holds(k, in.guard) == t.not() {
						continue
					}
					after := k.clone()
					if !p.learn(after, fact{a: in.guard}, t) {
						continue
					}
					was := w.state
					if poll := p.others(i); poll != nil && taken == 0 {
						if err := apply(poll); err != nil {
							return err
						}
					}
					follow(in.next[taken], after)
					w.state = was
				}
				break
			}
			p.set(k, i)
			if len(in.next) == 0 {
				break
			}
			if to := in.next[0]; in.name == "bra" || starts[to] {
				follow(to, k)
				break
			}
			i = in.next[0]
		}
	}
	return nil
}

// setBase is bases after an instruction that sets the one at b.
func (p *ptxPaths) setBase(bases string, b int, in *ptxInstruction, k int) string {
	of := thing(0)
	if in.name == "ld" { // a field of the lane
		of = fields[p.values.offset(in, aLane)+k*in.width()]
	}
	for _, r := range in.from {
		if k, ok := p.baseAt[r]; ok {
			of |= baseOf(bases, k)
		} else {
			of |= p.values.of[r]
		}
	}
	all := strings.Split(bases, ",")
	all[b] = strconv.Itoa(int(of))
	return strings.Join(all, ",")
}

func baseOf(bases string, b int) thing {
	n, _ := strconv.Atoi(strings.Split(bases, ",")[b])
	return thing(n)
}
