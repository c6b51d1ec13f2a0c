package redisstore

import (
	"context"
	_ "embed" // the scripts
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onefill/onefill/store"
	"github.com/redis/rueidis"
)

var (
	//go:embed scripts/inspect.lua
	inspectLua string
	//go:embed scripts/generationsof.lua
	generationsOfLua string
	//go:embed scripts/break.lua
	breakLua string

	inspectScript       = newScript(inspectLua)
	generationsOfScript = newScript(generationsOfLua)
	breakScript         = newScript(breakLua)
)

var (
	_ store.Inspector = (*session)(nil)
	_ store.Inspector = (*shardedSession)(nil)
)

// Inspect implements store.Inspector. It says which of the cluster's servers has the key.
func (s *shardedSession) Inspect(ctx context.Context, key string) (store.Holding, error) {
	h, err := s.session.Inspect(ctx, key)
	if err != nil {
		return store.Holding{}, err
	}
	if addr := s.Server(key); addr != "" {
		h.Server = addr
	}
	return h, nil
}

// Inspect implements store.Inspector: one script that reads.
func (s *session) Inspect(ctx context.Context, key string) (store.Holding, error) {
	c, err := s.conn(ctx)
	if err != nil {
		return store.Holding{}, s.store.failure("inspect", err)
	}
	value := valueKey(s.prefix, key)
	reply, err := s.store.run(ctx, c, call{script: inspectScript, keys: []string{value, leaseKey(value)}}).ToArray()
	if err != nil {
		return store.Holding{}, s.store.failure("inspect", err)
	}
	h, err := readHolding(reply)
	if err != nil {
		return store.Holding{}, s.store.failure("inspect", err)
	}
	h.Server = s.store.link.addr()
	return h, nil
}

// readHolding reads what inspect.lua returns.
func readHolding(reply []rueidis.RedisMessage) (h store.Holding, err error) {
	if len(reply) != 6 {
		return h, fmt.Errorf("the inspect script answered %d fields", len(reply))
	}
	kind, err := reply[1].ToString()
	if err != nil {
		return h, err
	}
	valueMS, err := reply[2].AsInt64()
	if err != nil {
		return h, err
	}
	if h.Item.Found = kind != "none"; h.Item.Found {
		h.Left = leftOf(valueMS)
		if kind != "string" {
			h.Foreign = kind
		} else if h.Item.Data, err = reply[0].AsBytes(); err != nil {
			return h, err
		}
	}
	leaseMS, err := reply[4].AsInt64()
	if err != nil {
		return h, err
	}
	if !reply[3].IsNil() {
		raw, err := reply[3].ToString()
		if err != nil {
			return h, err
		}
		h.Lease, h.Failure = readClaim(raw, leaseMS)
	}
	if clock, err := digits(&reply[5]); err == nil {
		h.Clock = time.UnixMicro(int64(min(clock, math.MaxInt64)))
	}
	return h, nil
}

// leftOf reads a PTTL of a key that is there.
func leftOf(ms int64) time.Duration {
	if ms < 0 {
		return store.Forever
	}
	return time.Duration(min(max(ms, 1), math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// readClaim reads what the lease's key holds: acquire.lua says what that may be. What has
// no deadline or another form is none of ours.
func readClaim(raw string, ms int64) (l store.LeaseInfo, f store.FailureInfo) {
	const claimBytes = 1 + 16 + 4
	switch {
	case ms < 0:
	case strings.HasPrefix(raw, "t") && len(raw) >= claimBytes:
		l.Token = store.Token([]byte(raw[1:17]))
		l.ID, l.Try, l.Left = l.Token.String(), binary.BigEndian.Uint32([]byte(raw[17:claimBytes])), leftOf(ms)
		owner, rest := cutOwner(raw[claimBytes:])
		l.Owner = owner
		if left, record, ok := cutRecord(rest); ok {
			f = store.FailureInfo{Record: record, Left: leftOf(left)}
		}
	case strings.HasPrefix(raw, "f"):
		if after, record, ok := cutRecord(raw[1:]); ok {
			f = store.FailureInfo{Record: record, Left: leftOf(ms)}
			if ms > after {
				f.Blocks = leftOf(ms - after)
			}
		}
	}
	return l, f
}

// cutOwner reads the owner of a lease, "" where there is none or a stranger has written
// what no terminal should get, and what is behind it.
func cutOwner(text string) (owner, rest string) {
	if field, rest, ok := strings.Cut(text, " "); ok && strings.HasPrefix(field, "@") {
		if owner = field[1:]; store.ValidOwner(owner) != nil {
			owner = ""
		}
		return owner, rest
	}
	return "", text
}

// cutRecord reads a time and the record of a failure behind it.
func cutRecord(text string) (ms int64, record []byte, ok bool) {
	number, rest, ok := strings.Cut(text, ":")
	if !ok {
		return 0, nil, false
	}
	ms, err := strconv.ParseInt(number, 10, 64)
	return ms, []byte(rest), err == nil && ms >= 0
}

// InspectTags implements store.Inspector: one script for each 128 tags.
func (s *session) InspectTags(ctx context.Context, tags ...string) (store.TagState, error) {
	c, err := s.conn(ctx)
	if err != nil {
		return store.TagState{}, s.store.failure("inspect tags", err)
	}
	state := store.TagState{Generations: make([]uint64, 0, len(tags))}
	parts := slices.Collect(slices.Chunk(tags, tagsPerScript))
	if len(parts) == 0 {
		parts = [][]string{nil} // the epoch alone
	}
	for _, some := range parts {
		found, err := s.store.run(ctx, c, call{script: generationsOfScript, keys: s.tagKeys(some)}).AsStrSlice()
		if err == nil && len(found) != 1+len(some) {
			err = fmt.Errorf("the script answered %d of %d", len(found), 1+len(some))
		}
		if err != nil {
			return store.TagState{}, s.store.failure("inspect tags", err)
		}
		state.Epoch = numberIn(found[0])
		for _, text := range found[1:] {
			state.Generations = append(state.Generations, numberIn(text))
		}
	}
	return state, nil
}

// numberIn reads an epoch as numbers.lua does: what is none counts as lost.
func numberIn(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n >= 1<<53 || strings.HasPrefix(text, "0") || strings.HasPrefix(text, "+") {
		return 0
	}
	return n
}

// BreakLease implements store.Inspector: one script.
func (s *session) BreakLease(ctx context.Context, key, id string) (bool, error) {
	token := []byte{}
	if id != "" {
		var err error
		if token, err = hex.DecodeString(id); err != nil || len(token) != len(store.Token{}) {
			return false, nil // no lease is called so
		}
	}
	c, err := s.conn(ctx)
	if err != nil {
		return false, s.store.failure("break lease", err)
	}
	value := valueKey(s.prefix, key)
	n, err := s.store.run(ctx, c, call{script: breakScript, keys: []string{leaseKey(value)}, args: []string{string(token)}}).AsInt64()
	return n == 1, s.store.failure("break lease", err)
}
