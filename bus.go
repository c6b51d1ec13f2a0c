package onefill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill/bus"
	"github.com/onefill/onefill/store"
)

// Options.Bus: each write is told to the other processes after the store has it, and what
// they hear has the effect of a push. A bus may lose messages, so they are numbered: who
// misses one takes everything in local for old. No write waits for the bus or fails by it.

// busLink is a cache's way to its bus. A nil one does nothing.
type busLink struct {
	bus     bus.Bus
	topic   string
	timeout time.Duration // of one Publish
	self    busSender
	hears   busListener
	log     *slog.Logger

	life  context.Context //nolint:containedctx // the life of the goroutines: ends at the beginning of close
	end   context.CancelFunc
	aloft sync.WaitGroup
	stop  func() // ends the subscription; set by whoever has subscribed

	outbox outbox
	// What follows belongs to the goroutine that publishes.
	number  uint64 // of the last message
	sentAt  int64  // when that was sent, or given up
	failing bool

	ears ears

	published, heard, gaps, errors, foreign atomic.Uint64
}

type busListener interface {
	changed(key string)
	voided(tag string)
	busGap(cause error)
	busError(err error)
}

const (
	// busPause is how long names gather after a message, unless they fill another one.
	busPause = 5 * time.Millisecond
	// busFill is how much a message holds, and one name more.
	busFill = bus.MaxMessageBytes / 4
	// busPending bounds what gathers while the bus is slow. One name more, and the next
	// message says "everything".
	busPending = 1 << 20
	// busTries and busRetry: a message is tried a few times, after pauses that grow.
	busTries = 3
	busRetry = 10 * time.Millisecond
	// A bus that fails is tried again after pauses that grow from probeEvery to this.
	slowestBusRetry = 4 * time.Second
	// busTimeout bounds a Publish, where StoreTimeout is longer.
	busTimeout = time.Second
)

// busBeats are the pauses between the heartbeats that follow a message. By them a loss of
// the last message is noticed.
var busBeats = []time.Duration{time.Second, 2 * time.Second, 4 * time.Second}

// attachBus subscribes the cache to its bus.
func (c *Cache[K, V]) attachBus() error {
	b := &busLink{
		bus: c.opts.Bus, topic: c.opts.Name, timeout: min(c.opts.StoreTimeout, busTimeout),
		self: store.NewToken(), hears: c, log: c.log,
		outbox: outbox{pending: map[debtor]struct{}{}, ready: make(chan struct{}, 1), full: make(chan struct{}, 1)},
		ears:   ears{now: c.local.Now, senders: map[busSender]heardOf{}},
	}
	b.life, b.end = context.WithCancel(context.WithoutCancel(c.life)) // Close ends that before the last writes
	patience := attachTimeout
	if c.opts.AllowStoreDown {
		patience = time.Second
	}
	ctx, cancel := context.WithTimeout(b.life, patience)
	defer cancel()
	err := b.subscribe(ctx)
	switch {
	case err == nil:
	case c.opts.AllowStoreDown:
		c.log.Warn("the bus does not answer yet", "err", err)
		b.aloft.Go(b.subscribeLater)
	default:
		b.end()
		return fmt.Errorf("onefill: subscribing cache %q to its bus: %w", c.opts.Name, err)
	}
	b.aloft.Go(b.run)
	c.bus = b
	return nil
}

// busGap: what others have changed may have gone unheard. As after a lost connection to
// a store that pushes, local answers nothing by itself that is from before.
func (c *Cache[K, V]) busGap(cause error) {
	c.local.Broken()
	c.flights.ChangedAll()
	c.tell(Event{Kind: EventBusGap, Err: cause})
}

func (c *Cache[K, V]) busError(err error) { c.tell(Event{Kind: EventBusError, Err: err}) }

func (b *busLink) subscribe(ctx context.Context) error {
	stop, err := b.bus.Subscribe(ctx, b.topic, b.hear, b.lost)
	if err == nil {
		b.stop = stop
		b.ears.restart()
	}
	return err
}

// subscribeLater subscribes as soon as the bus can be reached.
func (b *busLink) subscribeLater() {
	for pause := probeEvery; b.rest(pause, nil); pause = min(2*pause, slowestBusRetry) {
		ctx, cancel := context.WithTimeout(b.life, attachTimeout)
		err := b.subscribe(ctx)
		cancel()
		if err == nil {
			b.log.Info("subscribed to the bus")
			b.lost()
			return
		}
	}
}

// close publishes what is pending, as far as that goes in a bounded time, and ends the
// subscription.
func (b *busLink) close() {
	if b == nil {
		return
	}
	b.end()
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.aloft.Wait()
		if b.stop != nil {
			b.stop()
		}
	}()
	patience := time.NewTimer(2*b.timeout + farewell)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C:
		b.log.Warn("the bus does not end its calls when their contexts end; they are left behind")
	}
}

// publish tells the others that this process has written the names. It does not wait.
func (b *busLink) publish(names []string, tags bool) {
	if b != nil {
		b.outbox.add(names, tags)
	}
}

// run publishes what gathers, and heartbeats.
func (b *busLink) run() {
	defer b.farewell()
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	for beat := 0; ; {
		select {
		case <-b.life.Done():
			return
		case <-b.outbox.ready:
			if !b.flush() {
				return
			}
			beat = 0
		case <-timer.C:
			_ = b.try(&busMessage{}) // the next one says the same
			beat++
		}
		if beat < len(busBeats) {
			timer.Reset(busBeats[beat])
		}
	}
}

// flush publishes until nothing is pending. False: the cache is closed.
func (b *busLink) flush() bool {
	for retry := probeEvery; ; {
		m, ok := b.outbox.take()
		if !ok {
			return true
		}
		if b.send(m) {
			if retry = probeEvery; !b.rest(busPause, b.outbox.full) {
				return false
			}
			continue
		}
		// Nobody may serve on what this message would have dropped.
		b.outbox.overflow()
		if !b.rest(retry, nil) {
			return false
		}
		retry = min(2*retry, slowestBusRetry)
	}
}

// send publishes a message, and tries again a little.
func (b *busLink) send(m *busMessage) bool {
	m.content = true
	defer func() {
		b.number++
		b.sentAt = b.ears.now()
	}()
	pause := busRetry
	for try := 1; ; try++ {
		err := b.try(m)
		if err == nil {
			b.published.Add(1)
			if b.failing {
				b.log.Info("the bus takes messages again")
			}
			b.failing = false
			return true
		}
		if try == busTries || !b.rest(pause, nil) {
			if !b.failing {
				b.log.Warn("the bus takes no messages; other processes hear of this one's writes when their Local.TTL ends", "err", err)
			}
			b.failing = true
			return false
		}
		pause *= 4
	}
}

// try publishes a message once.
func (b *busLink) try(m *busMessage) error {
	m.sender, m.before, m.ago = b.self, b.number, time.Duration(b.ears.now()-b.sentAt)
	// What is pending when the cache is closed shall go out.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.life), b.timeout)
	defer cancel()
	err := b.bus.Publish(ctx, b.topic, m.encode())
	if err != nil {
		b.errors.Add(1)
		b.hears.busError(err)
	}
	return err
}

// farewell publishes what is pending when the cache is closed, without patience.
func (b *busLink) farewell() {
	start := b.ears.now()
	for b.ears.now()-start < int64(b.timeout) {
		m, ok := b.outbox.take()
		if !ok || !b.send(m) { // life has ended, so nothing is tried twice
			return
		}
	}
}

// rest waits, but not if there is something in early. False: the cache is closed.
func (b *busLink) rest(d time.Duration, early <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-early:
	case <-t.C:
	case <-b.life.Done():
		return false
	}
	return b.life.Err() == nil
}

// hear is called by the bus with each message.
func (b *busLink) hear(data []byte) {
	m, err := readBusMessage(data)
	switch {
	case err == errForeignMessage:
		b.foreign.Add(1)
		return
	case err != nil:
		b.foreign.Add(1)
		b.gap(err)
		return
	case m.sender == b.self:
		return
	}
	if m.content {
		b.heard.Add(1)
	}
	switch missed := b.ears.hear(&m); {
	case m.everything:
		b.gap(errEverything)
	case missed:
		b.gap(errMissedMessage)
	}
	for _, n := range m.names {
		if n.tag {
			b.hears.voided(n.name)
		} else {
			b.hears.changed(n.name)
		}
	}
}

var (
	errMissedMessage = errors.New("onefill: a message of another process was missed")
	errEverything    = errors.New("onefill: another process could not say what it has written")
	errReconnected   = errors.New("onefill: the connection to the bus was lost for a while")
)

// lost is called by the bus when messages may have been lost.
func (b *busLink) lost() {
	b.ears.restart()
	b.gap(errReconnected)
}

func (b *busLink) gap(cause error) {
	b.gaps.Add(1)
	b.hears.busGap(cause)
}

// outbox is what is to be told to the others. It is safe for concurrent use.
type outbox struct {
	ready chan struct{} // something is pending
	full  chan struct{} // as much as a message holds

	mu      sync.Mutex // leaf: nothing is called under it
	pending map[debtor]struct{}
	size    int  // bytes of pending, as they will be sent, about
	all     bool // instead of pending: "everything"
}

func (o *outbox) add(names []string, tags bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range names {
		if o.all {
			break
		}
		who := debtor{name, tags}
		if _, there := o.pending[who]; there {
			continue
		}
		o.pending[who] = struct{}{}
		if o.size += nameBytes(name); o.size+len(o.pending)*debtOverhead > busPending {
			o.replace()
		}
	}
	o.signal()
}

// nameBytes is what a name takes in a message, about.
func nameBytes(name string) int { return len(name) + 4 }

// overflow makes the next message say "everything".
func (o *outbox) overflow() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.replace()
	o.signal()
}

// replace and signal: the lock is held.
func (o *outbox) replace() {
	o.pending, o.size, o.all = map[debtor]struct{}{}, 0, true
}

func (o *outbox) signal() {
	if o.all || len(o.pending) > 0 {
		wake(o.ready)
	}
	if o.size >= busFill {
		wake(o.full)
	}
}

// take returns the next message, if there is one.
func (o *outbox) take() (m *busMessage, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all {
		o.all = false
		return &busMessage{everything: true}, true
	}
	m = &busMessage{}
	taken := 0
	for who := range o.pending {
		m.names = append(m.names, who)
		delete(o.pending, who)
		size := nameBytes(who.name)
		o.size -= size
		if taken += size; taken >= busFill {
			break
		}
	}
	if len(o.pending) == 0 && len(m.names) > 0 {
		o.pending = map[debtor]struct{}{} // a map keeps the memory of its largest day
	}
	o.signal()
	return m, len(m.names) > 0
}

// ears keep count of what was heard of each sender. They are safe for concurrent use.
type ears struct {
	now func() int64

	mu      sync.Mutex // leaf
	senders map[busSender]heardOf
	// since is a moment after which everything in local that is current was read: when the
	// subscription was made, or made again.
	since int64
}

type heardOf struct {
	last uint64 // the highest number
	at   int64  // when it was heard from
}

// maxSenders is how many senders are remembered. A sender that was forgotten is one that
// was not known.
const maxSenders = 4096

// restart forgets who was heard: the subscription is in force as from now.
func (e *ears) restart() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.senders)
	e.since = e.now()
}

// hear notes a message and says whether one before it was missed that matters here. Of a
// sender that was not known, those do that were sent since: what it has written before
// was in the store when local was filled, as a write is published after the store has it.
func (e *ears) hear(m *busMessage) (missed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	s, known := e.senders[m.sender]
	if known {
		missed = s.last < m.before
	} else {
		missed = m.before > 0 && now-int64(m.ago) >= e.since
		e.makeRoom()
	}
	last := m.before
	if m.content {
		last++
	}
	e.senders[m.sender] = heardOf{max(s.last, last), now}
	return missed
}

// makeRoom forgets the sender that has been silent for longest, if there are too many.
// The lock is held.
func (e *ears) makeRoom() {
	if len(e.senders) < maxSenders {
		return
	}
	var oldest busSender
	at := int64(-1)
	for sender, s := range e.senders {
		if at < 0 || s.at < at {
			oldest, at = sender, s.at
		}
	}
	delete(e.senders, oldest)
}
