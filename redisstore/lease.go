package redisstore

import (
	"context"
	"strconv"
	"time"

	"github.com/onefill/onefill/store"
)

// What the scripts have to know of the envelope.
var (
	markBytes        = strconv.Itoa(store.MarkBytes)
	headerBytes      = strconv.Itoa(store.HeaderBytes)
	softExpiryOffset = strconv.Itoa(store.SoftExpiryOffset)
	rowVersionOffset = strconv.Itoa(store.RowVersionOffset)
	// envelopeBegin is the magic and the format, the same in every envelope.
	envelopeBegin = string((&store.Envelope{Kind: store.KindValue}).Encode()[:3])
)

// claim is what lies in the lease's key while somebody loads. A failure record lies
// there with an 'f' before it, so the two are told apart whatever the record is.
func claim(token store.Token) string { return "t" + string(token[:]) }

// lease implements store.Lease.
type lease struct {
	session      *session
	key          string // the cache's
	value, lease string // Redis'
	claim        string
}

// Fill implements store.Lease: one script. An accepted fill leaves the connection
// armed on the value.
func (l *lease) Fill(ctx context.Context, data []byte, ttl time.Duration) (bool, error) {
	st := l.session.store
	if err := checkSize(data); err != nil {
		return false, st.failure("fill", err)
	}
	c, err := l.session.conn(ctx)
	if err != nil {
		return false, st.failure("fill", err)
	}
	stored, err := l.session.write(ctx, c, l.key, l.value, ownPushIfStored, call{
		script: fillScript,
		keys:   []string{l.value, l.lease},
		args:   []string{l.claim, string(data), millisOrGone(ttl), rowVersion(data), rowVersionOffset, envelopeBegin, headerBytes},
	})
	return stored, st.failure("fill", err)
}

// Fail implements store.Lease: one script.
func (l *lease) Fail(ctx context.Context, record []byte, ttl time.Duration) (bool, error) {
	return l.run(ctx, "fail", failScript, string(record), millisOrGone(ttl))
}

// Renew implements store.Lease: one script.
func (l *lease) Renew(ctx context.Context, ttl time.Duration) (bool, error) {
	return l.run(ctx, "renew", renewScript, millis(ttl))
}

// Release implements store.Lease: one script.
func (l *lease) Release(ctx context.Context) (bool, error) {
	return l.run(ctx, "release", releaseScript)
}

// run runs a script that concerns the lease only.
func (l *lease) run(ctx context.Context, op string, script *script, args ...string) (bool, error) {
	st := l.session.store
	c, err := l.session.conn(ctx)
	if err != nil {
		return false, st.failure(op, err)
	}
	n, err := st.run(ctx, c, call{script: script, keys: []string{l.lease}, args: append([]string{l.claim}, args...)}).AsInt64()
	return n == 1, st.failure(op, err)
}
