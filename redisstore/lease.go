package redisstore

import (
	"context"
	"encoding/binary"
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

// claim is what the lease's key begins with while somebody loads; acquire.lua says
// what may follow. A failure record lies there with an 'f' before it, so the two are
// told apart whatever the record is.
func claim(req store.Request) string {
	b := append([]byte{'t'}, req.Token[:]...)
	return string(binary.BigEndian.AppendUint32(b, req.Try))
}

// ownerField is what a lease's key holds of its owner, behind the claim: it has an end of
// its own, so that it can be told from what follows.
func ownerField(owner string) string {
	if owner == "" {
		return ""
	}
	return "@" + owner + " "
}

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
	return l.run(ctx, "fail", failScript, string(record), millisOrGone(ttl), millisTwice(ttl))
}

// Renew implements store.Lease: one script.
func (l *lease) Renew(ctx context.Context, ttl time.Duration) (bool, error) {
	return l.run(ctx, "renew", renewScript, millis(ttl))
}

// Release implements store.Lease: one script. The record of a failure that was
// remembered when the lease was won is remembered again, for what was left of it then.
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
