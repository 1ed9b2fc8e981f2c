package main

import (
	"errors"
	"sync"
	"time"
)

// errNoAnswer is the error of what has not answered within the limit.
var errNoAnswer = errors.New("it does not answer")

// asker asks by name what may never answer: a device whose medium hangs. The asking goes on in a goroutine that is left behind, so it is for what belongs to others, and for a
// process that ends soon. What is known not to answer is not asked again until it has.
type asker[T any] struct {
	limit time.Duration

	mu   sync.Mutex
	hung map[string]int // questions that the limit has passed of, without an answer
}

type answer[T any] struct {
	value T
	err   error
}

// ask returns what f returns, or errNoAnswer.
func (a *asker[T]) ask(name string, f func() (T, error)) (T, error) {
	none := *new(T)
	if a.known(name) { // another goroutine would hang, too
		return none, errNoAnswer
	}
	answered := make(chan answer[T], 1)
	go func() {
		value, err := f()
		answered <- answer[T]{value, err}
	}()
	limit := time.NewTimer(a.limit)
	defer limit.Stop()
	select {
	case got := <-answered:
		return got.value, got.err
	case <-limit.C:
	}
	a.count(name, 1)
	go func() {
		<-answered
		a.count(name, -1)
	}()
	return none, errNoAnswer
}

func (a *asker[T]) known(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hung[name] > 0
}

func (a *asker[T]) count(name string, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.hung == nil {
		a.hung = map[string]int{}
	}
	if a.hung[name] += n; a.hung[name] == 0 {
		delete(a.hung, name)
	}
}
