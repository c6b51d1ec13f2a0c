package faultproxy

// Loss is one reply that is to be lost.
type Loss struct {
	match func(request []byte) bool
	done  chan struct{}
}

// LoseReply waits for a request that match wants, lets it through, and when the
// server has answered it throws the answer away and resets the connection: the
// request has been applied, and the client cannot know. It happens once.
//
// A request is what one read brings: a small one that is written at once is whole.
// The answer is taken to be the first bytes that come after the request, so if others
// are answered over the same connection in that moment, theirs may be what is lost.
func (p *Proxy) LoseReply(match func(request []byte) bool) *Loss {
	l := &Loss{match: match, done: make(chan struct{})}
	p.lose(l)
	return l
}

// Done is closed when the reply has been lost.
func (l *Loss) Done() <-chan struct{} { return l.done }

func (p *Proxy) lose(l *Loss) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loses = l
}

// arm looks whether a request is the one whose reply is to be lost.
func (c *conn) arm(request []byte) {
	c.p.mu.Lock()
	l := c.p.loses
	c.p.mu.Unlock()
	if l == nil || !l.match(request) {
		return
	}
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	if c.p.loses == l {
		c.p.loses, c.loss = nil, l
	}
}

// lost says whether the bytes that have come are the reply that is to be lost; then
// the connection has been reset.
func (c *conn) lost(d Direction) bool {
	if d != Replies {
		return false
	}
	c.p.mu.Lock()
	l := c.loss
	c.loss = nil
	c.p.mu.Unlock()
	if l == nil {
		return false
	}
	c.end(RST)
	close(l.done)
	return true
}
