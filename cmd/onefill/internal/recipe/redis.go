package recipe

import (
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/onefill/onefill/redisstore"
	"github.com/redis/rueidis"
)

// ConnectTimeout bounds the recipes' connecting to a server.
const ConnectTimeout = 5 * time.Second

// Redis is a Store on Redis: a client without client-side cache.
type Redis struct{ Client rueidis.Client }

// OpenRedis connects to the server of a URL, and asks it whether it answers. No error has the
// URL's password.
func OpenRedis(ctx context.Context, address string) (*Redis, error) {
	opt, err := RedisOption(address)
	if err != nil {
		return nil, err
	}
	opt.DisableCache = true
	opt.DisableRetry = true    // what a dead server costs is to be seen, not how long the client hopes
	opt.PipelineMultiplex = -1 // one connection a process, so that the warm-up opens all of them
	opt.Dialer.Timeout = ConnectTimeout
	opt.ConnWriteTimeout = ConnectTimeout // also of the handshake
	client, err := rueidis.NewClient(opt)
	if err != nil {
		return nil, err
	}
	p := &Redis{client}
	if err := client.Do(ctx, client.B().Ping().Build()).Error(); err != nil {
		client.Close()
		return nil, err
	}
	return p, nil
}

// RedisOption reads a URL as redisstore.Open does, for those who need a client of their own.
// No error has any part of a URL that may hold a password.
func RedisOption(address string) (rueidis.ClientOption, error) {
	s, err := redisstore.Open(address)
	if err != nil {
		return rueidis.ClientOption{}, err
	}
	s.Close()
	if u, err := url.Parse(address); err == nil && u.Host != "" && u.Path == "/" {
		u.Path = "" // redis://host/ is redis://host
		address = u.String()
	}
	opt, err := rueidis.ParseURL(address)
	if err != nil {
		return opt, errors.New("not a Redis URL")
	}
	return opt, nil
}

// Get is GET.
func (p *Redis) Get(ctx context.Context, key string) (string, bool, error) {
	value, err := p.Client.Do(ctx, p.Client.B().Get().Key(key).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return "", false, nil
	}
	return value, err == nil, err
}

// Set is SET with a time to live.
func (p *Redis) Set(ctx context.Context, key, value string, ttl time.Duration) error {
	return p.Client.Do(ctx, p.Client.B().Set().Key(key).Value(value).Px(ttl).Build()).Error()
}

// Add is SET NX.
func (p *Redis) Add(ctx context.Context, key, value string, ttl time.Duration) (bool, error) {
	err := p.Client.Do(ctx, p.Client.B().Set().Key(key).Value(value).Nx().Px(ttl).Build()).Error()
	if rueidis.IsRedisNil(err) {
		return false, nil
	}
	return err == nil, err
}

// Delete is DEL.
func (p *Redis) Delete(ctx context.Context, key string) (bool, error) {
	n, err := p.Client.Do(ctx, p.Client.B().Del().Key(key).Build()).AsInt64()
	return n > 0, err
}

// Close closes the client.
func (p *Redis) Close() { p.Client.Close() }
