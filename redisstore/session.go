package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill/store"
	"github.com/redis/rueidis"
)

// maxValueBytes is what Redis takes as one string, unless proto-max-bulk-len says
// otherwise.
const maxValueBytes = 512 << 20

// session implements store.Session.
type session struct {
	store  *Store
	name   string
	prefix string // "of:{name:"
	owner  string // as a lease's key has it: see ownerField
	events store.Events
	closed atomic.Bool
}

func (s *session) changed(key string) {
	if s.events.Changed != nil && !s.closed.Load() {
		s.events.Changed(key)
	}
}

func (s *session) voided(tag string) {
	if s.events.Voided != nil && !s.closed.Load() {
		s.events.Voided(tag)
	}
}

func (s *session) raised() {
	if s.events.Raised != nil && !s.closed.Load() {
		s.events.Raised()
	}
}

// tell tells the session of a push.
func (s *session) tell(k parsed) {
	switch k.kind {
	case isTag:
		s.voided(k.key)
	case isEpoch:
		s.raised()
	default:
		s.changed(k.key)
	}
}

func (s *session) lost() {
	if s.events.Lost != nil && !s.closed.Load() {
		s.events.Lost()
	}
}

// Features implements store.Session. As long as the server has never been reached
// (AllowDown), Push is false; it may become true later.
func (s *session) Features() store.Features {
	return store.Features{
		Push:              s.store.link.pushes.Load(),
		KeepsToken:        true,
		FailureKeepsValue: true,
		Granularity:       time.Millisecond,
		MinLease:          time.Millisecond,
		MaxValueBytes:     maxValueBytes,
	}
}

func (s *session) replaced() {
	if s.events.Replaced != nil && !s.closed.Load() {
		s.events.Replaced()
	}
}

func (s *session) conn(ctx context.Context) (*conn, error) {
	if s.closed.Load() {
		return nil, errSessionClosed
	}
	return s.store.conn(ctx)
}

// Get implements store.Session: one GET.
func (s *session) Get(ctx context.Context, key string) (store.Item, error) {
	c, err := s.conn(ctx)
	if err != nil {
		return store.Item{}, s.store.failure("get", err)
	}
	// As an arbitrary command, which rueidis does not repeat: for a read-only one it
	// would try again until the context ends, though the server refuses connections.
	value := valueKey(s.prefix, key)
	cmd := c.B().Arbitrary("GET").Keys(value).Build()
	result := s.store.guardOf(value).do(ctx, c, cmd)
	data, err := result.AsBytes() // the message's own bytes; nobody else has them
	switch {
	case err == nil:
		return store.Item{Data: data, Found: true}, nil
	case rueidis.IsRedisNil(err):
		return store.Item{}, nil
	case isWrongType(err):
		return store.Item{Found: true}, nil
	}
	return store.Item{}, s.store.failure("get", err)
}

// Acquire implements store.Session: one script.
func (s *session) Acquire(ctx context.Context, key string, req store.Request) (store.Answer, error) {
	c, err := s.conn(ctx)
	if err != nil {
		return store.Answer{}, s.store.failure("acquire", err)
	}
	value := valueKey(s.prefix, key)
	var w *watch
	if c.push {
		// Before the script is sent: a push must find it.
		w = s.store.board.watch(s, value)
	}
	answer, err := s.acquire(ctx, c, key, value, req)
	if err == nil && answer.State == store.Held && w != nil {
		answer.Watch = w
		if s.closed.Load() {
			s.store.board.wake(value) // Close may have looked before it was there
		}
	} else if w != nil {
		w.Stop()
	}
	return answer, s.store.failure("acquire", err)
}

func (s *session) acquire(ctx context.Context, c *conn, key, value string, req store.Request) (store.Answer, error) {
	l := &lease{session: s, key: key, value: value, lease: leaseKey(value), claim: claim(req)}
	seen := ""
	if req.Seen != nil {
		seen = "=" + string(req.Seen)
	}
	// Not marked: the winner hears its own write of the lease, and that may wake
	// somebody of this process who has asked right after it. He asks once more; a
	// marker would be one more command for everybody.
	reply, err := s.store.run(ctx, c, call{
		script: acquireScript,
		keys:   []string{l.value, l.lease},
		args:   []string{l.claim, millis(req.TTL), seen, markBytes, s.owner},
	}).ToArray()
	if err != nil {
		return store.Answer{}, err
	}
	return readAnswer(reply, l)
}

// readAnswer reads what acquire.lua returns.
func readAnswer(reply []rueidis.RedisMessage, l *lease) (store.Answer, error) {
	field := func(i int) *rueidis.RedisMessage {
		if i < len(reply) {
			return &reply[i]
		}
		return &rueidis.RedisMessage{} // no integer, no string
	}
	state, err := field(0).AsInt64()
	if err != nil {
		return store.Answer{}, err
	}
	answer := store.Answer{State: store.State(state)}
	switch answer.State {
	case store.Hit:
		answer.Item.Found = true
		answer.Item.Data, err = field(1).AsBytes()
	case store.Won:
		if answer.Lease = l; len(reply) > 1 {
			answer.Failure, err = field(1).AsBytes()
		}
	case store.Held:
		answer.Remaining, err = remaining(field(1))
	case store.Failed:
		if answer.Remaining, err = remaining(field(1)); err == nil {
			answer.Failure, err = field(2).AsBytes()
		}
	default:
		err = fmt.Errorf("the acquire script answered %d", state)
	}
	return answer, err
}

// remaining reads a PTTL, which rounds down: what is there lasts a moment at least.
func remaining(message *rueidis.RedisMessage) (time.Duration, error) {
	ms, err := message.AsInt64()
	return time.Duration(min(max(ms, 1), math.MaxInt64/int64(time.Millisecond))) * time.Millisecond, err
}

// Set implements store.Session: one script.
func (s *session) Set(ctx context.Context, key string, data []byte, ttl time.Duration) (bool, error) {
	if err := checkSize(data); err != nil {
		return false, s.store.failure("set", err)
	}
	c, err := s.conn(ctx)
	if err != nil {
		return false, s.store.failure("set", err)
	}
	value := valueKey(s.prefix, key)
	confirm := s.store.confirming(c, value)
	stored, err := s.write(ctx, c, key, value, ownPush, call{
		script: setScript,
		keys:   []string{value, leaseKey(value)},
		args:   []string{string(data), millisOrGone(ttl), rowVersion(data), rowVersionOffset, envelopeBegin, headerBytes},
	})
	if err == nil {
		err = confirm(ctx)
	}
	return stored, s.store.failure("set", err)
}

// write runs a script that puts a value in, and keeps its own push from the session.
func (s *session) write(ctx context.Context, c *conn, key, value string, caused func(applied bool) int, script call) (bool, error) {
	var w *ownWrite
	if c.push {
		w = s.store.board.begin(s, parsed{isValue, s.name, key, value})
	}
	n, err := s.store.runMarked(ctx, c, script).AsInt64()
	if w != nil {
		pushes := 0 // after an error nobody knows: one too many does no harm
		if err == nil {
			pushes = caused(n == 1)
		}
		s.store.board.end(w, pushes)
	}
	return n == 1, err
}

// How many pushes for the value the own connection gets, by what the scripts do: they
// read the value, so that it is armed, and then write it once.
func ownPush(bool) int { return 1 }

func ownPushIfStored(stored bool) int {
	if stored {
		return 1
	}
	return 0
}

// Invalidate implements store.Session: one script per key, in a pipeline.
func (s *session) Invalidate(ctx context.Context, keys ...string) error {
	return s.each(ctx, "invalidate", invalidateScript, nil, keys)
}

// Expire implements store.Session: one script per key, in a pipeline.
func (s *session) Expire(ctx context.Context, now time.Time, keys ...string) error {
	field := store.ExpiryField(now)
	args := []string{string(field[:]), softExpiryOffset, envelopeBegin + string(rune(store.KindValue)), headerBytes}
	return s.each(ctx, "expire", expireScript, args, keys)
}

func (s *session) each(ctx context.Context, op string, script *script, args, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	c, err := s.conn(ctx)
	if err != nil {
		return s.store.failure(op, err)
	}
	calls, writes := make([]call, len(keys)), make([]*ownWrite, 0, len(keys))
	values := make([]string, len(keys))
	for i, key := range keys {
		value := valueKey(s.prefix, key)
		values[i] = value
		calls[i] = call{script: script, keys: []string{value, leaseKey(value)}, args: args}
		if c.push {
			writes = append(writes, s.store.board.begin(s, parsed{isValue, s.name, key, value}))
		}
	}
	return s.store.failure(op, s.writeAll(ctx, c, calls, writes, values))
}

// writeAll runs scripts, each of which causes one push for each key that it writes, keeps
// these from the session, and waits for the replicas of the nodes that have the keys.
func (s *session) writeAll(ctx context.Context, c *conn, calls []call, writes []*ownWrite, keys []string) error {
	confirm := s.store.confirming(c, keys...)
	err := s.store.runAll(ctx, c, calls)
	pushes := 0
	if err == nil {
		pushes = ownPush(true)
	}
	for _, w := range writes {
		s.store.board.end(w, pushes)
	}
	if err == nil {
		err = confirm(ctx)
	}
	return err
}

// Ping implements store.Session. In a cluster it asks every primary, or one if they are not
// known.
func (s *session) Ping(ctx context.Context) error {
	c, err := s.conn(ctx)
	if err != nil {
		return s.store.failure("ping", err)
	}
	if c.survey != nil {
		return s.store.failure("ping", c.survey.ping(ctx))
	}
	ping := greeting(c)
	if c.client.Mode() == rueidis.ClientModeCluster { // without a key it may go to a replica
		ping = c.B().Arbitrary("EXISTS").Keys(valueKey(s.prefix, "")).Build()
	}
	return s.store.failure("ping", s.store.guard.do(ctx, c, ping).Error())
}

// greeting is a PING with a message that makes it known as an operation of ours: see wire.
func greeting(c rueidis.CommandClient) rueidis.Completed {
	return c.B().Arbitrary("PING").Args(keyPrefix).Build()
}

// Close implements store.Session. Closing twice is fine. An event that another
// goroutine is telling at that moment may still end after Close.
func (s *session) Close() error {
	if s.closed.CompareAndSwap(false, true) {
		s.store.delist(s)
		s.store.board.wakeAll(s)
	}
	return nil
}

func checkSize(data []byte) error {
	if len(data) > maxValueBytes {
		return fmt.Errorf("%w: %d bytes, Redis takes at most %d", store.ErrTooLarge, len(data), maxValueBytes)
	}
	return nil
}

// rowVersion is the row version of an envelope as the scripts compare it: big-endian,
// or "" if it has none.
func rowVersion(data []byte) string {
	v := store.RowVersionOf(data)
	if v == 0 {
		return ""
	}
	return string(binary.BigEndian.AppendUint64(nil, v))
}
