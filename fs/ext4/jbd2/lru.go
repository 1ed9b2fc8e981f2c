package jbd2

// lru is an intrusive list of buffers without references, most recently used first. The zero value is empty.
type lru struct {
	head, tail *Buffer
}

func (l *lru) push(b *Buffer) {
	b.prev, b.next = nil, l.head
	if l.head != nil {
		l.head.prev = b
	} else {
		l.tail = b
	}
	l.head = b
}

func (l *lru) remove(b *Buffer) {
	if b.prev != nil {
		b.prev.next = b.next
	} else {
		l.head = b.next
	}
	if b.next != nil {
		b.next.prev = b.prev
	} else {
		l.tail = b.prev
	}
	b.prev, b.next = nil, nil
}
