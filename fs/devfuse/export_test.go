package devfuse

// Waiting is how many readers wait.
func (t *Transport) Waiting() int { return int(t.waiting.Load()) }
