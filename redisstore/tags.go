package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/onefill/onefill/store"
	"github.com/redis/rueidis"
)

var _ store.Tagger = (*session)(nil)

// tagsPerScript bounds how long one script holds up the server. It is more than the core
// ever reads at once.
const tagsPerScript = 128

// Epoch implements store.Tagger: one script.
func (s *session) Epoch(ctx context.Context) (uint64, error) {
	c, err := s.conn(ctx)
	if err != nil {
		return 0, s.store.failure("epoch", err)
	}
	result := s.store.run(ctx, c, call{script: epochScript, keys: []string{epochKey(s.name)}})
	message, err := result.ToMessage()
	if err != nil {
		return 0, s.store.failure("epoch", err)
	}
	epoch, err := digits(&message)
	return epoch, s.store.failure("epoch", err)
}

// Generations implements store.Tagger: one script for each 128 tags, which leaves the
// connection armed on them.
func (s *session) Generations(ctx context.Context, keep time.Duration, tags ...string) ([]uint64, error) {
	c, err := s.conn(ctx)
	if err != nil {
		return nil, s.store.failure("generations", err)
	}
	generations := make([]uint64, 0, len(tags))
	for some := range slices.Chunk(tags, tagsPerScript) {
		reply, err := s.store.run(ctx, c, call{
			script: generationScript,
			keys:   s.tagKeys(some),
			args:   []string{millis(keep), millisTwice(keep), tagPrefix(s.name)},
		}).ToArray()
		if err == nil && len(reply) != len(some) {
			err = fmt.Errorf("the generations script answered %d of %d", len(reply), len(some))
		}
		if err != nil {
			return nil, s.store.failure("generations", err)
		}
		for i := range reply {
			g, err := digits(&reply[i])
			if err != nil {
				return nil, s.store.failure("generations", err)
			}
			generations = append(generations, g)
		}
	}
	return generations, nil
}

// VoidTags implements store.Tagger: one script for each 128 tags, in a pipeline.
func (s *session) VoidTags(ctx context.Context, keep time.Duration, tags ...string) error {
	c, err := s.conn(ctx)
	if err != nil || len(tags) == 0 {
		return s.store.failure("void tags", err)
	}
	var calls []call
	var writes []*ownWrite
	for some := range slices.Chunk(tags, tagsPerScript) {
		keys := s.tagKeys(some)
		calls = append(calls, call{script: voidScript, keys: keys, args: []string{millisTwice(keep), tagPrefix(s.name)}})
		for i := range some {
			if c.push {
				writes = append(writes, s.store.board.begin(s, parsed{isTag, s.name, some[i], keys[i+1]}))
			}
		}
	}
	return s.store.failure("void tags", s.writeAll(ctx, c, calls, writes, []string{epochKey(s.name)}))
}

// tagKeys are the keys of a script about tags: the epoch, and the generations.
func (s *session) tagKeys(tags []string) []string {
	keys := make([]string, 1, 1+len(tags))
	keys[0] = epochKey(s.name)
	prefix := tagPrefix(s.name)
	for _, tag := range tags {
		keys = append(keys, prefix+tag)
	}
	return keys
}

// digits reads an epoch as the scripts return it.
func digits(message *rueidis.RedisMessage) (uint64, error) {
	text, err := message.ToString()
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(text, 10, 64)
}
