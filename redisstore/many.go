package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/onefill/onefill/store"
	"github.com/redis/rueidis"
)

var _ store.ManyReader = (*session)(nil)

// keysPerRead bounds how long one command, or one pipeline, holds up the server.
const keysPerRead = 256

// GetMany implements store.ManyReader: one MGET for each 256 keys, or a pipeline of GETs: in a
// cluster, since the keys of one node lie in many slots, and where MGET is refused.
func (s *session) GetMany(ctx context.Context, keys []string) ([]store.Item, error) {
	c, err := s.conn(ctx)
	if err != nil {
		return nil, s.store.failure("get many", err)
	}
	items := make([]store.Item, 0, len(keys))
	for some := range slices.Chunk(keys, keysPerRead) {
		values := s.valueKeys(some)
		if items, err = s.read(ctx, c, values, items); err != nil {
			return nil, s.store.failure("get many", err)
		}
	}
	return items, nil
}

func (s *session) read(ctx context.Context, c *conn, values []string, items []store.Item) ([]store.Item, error) {
	// The client's mode, as a cluster whose chart is refused is no less one.
	if c.client.Mode() != rueidis.ClientModeCluster && !s.store.noMGET.Load() {
		some, err := s.mget(ctx, c, values, items)
		if _, refused := asRefusal(err); !refused {
			return some, err
		}
		s.store.noMGET.Store(true) // by an ACL from before it was used, say
	}
	return s.gets(ctx, c, values, items)
}

// valueKeys are the values' keys, in one piece of memory.
func (s *session) valueKeys(keys []string) []string {
	size := 0
	for _, key := range keys {
		size += len(s.prefix) + len(key) + len(keySuffix)
	}
	var all strings.Builder
	all.Grow(size)
	values := make([]string, len(keys))
	for i, key := range keys {
		begin := all.Len()
		all.WriteString(s.prefix)
		all.WriteString(key)
		all.WriteString(keySuffix)
		values[i] = all.String()[begin:]
	}
	return values
}

func (s *session) mget(ctx context.Context, c *conn, values []string, items []store.Item) ([]store.Item, error) {
	replies, err := s.store.guardOf(values[0]).do(ctx, c, c.B().Arbitrary("MGET").Keys(values...).Build()).ToArray()
	if err == nil && len(replies) != len(values) {
		err = fmt.Errorf("MGET has %d answers to %d keys", len(replies), len(values))
	}
	if err != nil {
		return nil, err
	}
	for i := range replies {
		data, err := replies[i].AsBytes()
		if err != nil && !rueidis.IsRedisNil(err) {
			return nil, err
		}
		items = append(items, store.Item{Data: data, Found: err == nil})
	}
	return items, nil
}

func (s *session) gets(ctx context.Context, c *conn, values []string, items []store.Item) ([]store.Item, error) {
	cmds := make([]rueidis.Completed, len(values))
	for i, value := range values {
		cmds[i] = c.B().Arbitrary("GET").Keys(value).Build()
	}
	for _, reply := range s.store.guardOf(values[0]).doMulti(ctx, c, cmds) {
		data, err := reply.AsBytes()
		if err != nil && !rueidis.IsRedisNil(err) && !isWrongType(err) {
			return nil, err
		}
		items = append(items, store.Item{Data: data, Found: err == nil})
	}
	return items, nil
}
