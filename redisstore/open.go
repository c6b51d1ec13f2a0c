package redisstore

import (
	"errors"
	"fmt"
	neturl "net/url"
	"strings"

	"github.com/redis/rueidis"
)

// Option changes how a [Store] is made.
type Option func(*options)

type options struct {
	noTracking bool
	confirm    *confirmation
}

// NoTracking makes the store do without pushes, as if the server had none: caches
// hear of the changes of others when their local entries end, and waiters poll. It
// saves the server the tracking table.
func NoTracking() Option { return func(o *options) { o.noTracking = true } }

func apply(opts []Option) (options, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	return o, o.confirm.check()
}

// Open makes a store with a client of its own for the server at url:
//
//	redis://user:password@host:6379/0
//	rediss://host:6379                                  TLS
//	unix:///run/redis.sock?db=1
//	redis://host1:7000?addr=host2:7000&addr=host3:7000  a cluster
//	redis://sentinel1:26379?addr=sentinel2:26379&master_set=main
//
// valkey:// and valkeys:// are the same as redis:// and rediss://. Further
// parameters are those of rueidis.ParseURL: client_name, dial_timeout (5s),
// write_timeout, protocol=2 and client_cache=0 (both of which forgo pushes).
//
// The error is for a bad URL only. The server is asked by the first operation, so
// it does not have to be up; a connection that is lost is made again by the next
// operation. [Store.Close] closes the client.
func Open(url string, opts ...Option) (*Store, error) {
	if url == "" {
		return nil, errors.New("redisstore: open: the URL is empty; give one such as redis://localhost:6379")
	}
	option, err := rueidis.ParseURL(withoutSlash(url))
	if err != nil {
		return nil, fmt.Errorf("redisstore: open: not a Redis URL (%s)", redact(err, url))
	}
	return OpenOption(option, opts...)
}

// withoutSlash makes redis://host/ mean redis://host, as every other client has it;
// rueidis takes the slash for the beginning of a database's number.
func withoutSlash(url string) string {
	u, err := neturl.Parse(url)
	if err != nil || u.Host == "" || u.Path != "/" {
		return url
	}
	u.Path = ""
	return u.String()
}

// redact says why a URL could not be read, without its password: the cause may quote
// any part of it.
func redact(err error, url string) string {
	if strings.Contains(url, "@") {
		return "it cannot be read; it is not shown, as it may hold a password; write / ? # @ : % in one as %2F and so on"
	}
	if cause := errors.Unwrap(err); cause != nil {
		err = cause
	}
	return err.Error()
}

// OpenOption is [Open] with full control of the client: TLS, credentials that
// change, dialers. It sets the fields that tracking needs, and refuses an option
// that is at odds with them. A function OnInvalidations is called after the store
// has heard the push.
func OpenOption(option rueidis.ClientOption, opts ...Option) (*Store, error) {
	if err := checkOption(&option); err != nil {
		return nil, fmt.Errorf("redisstore: open: %w", err)
	}
	o, err := apply(opts)
	if err != nil {
		return nil, fmt.Errorf("redisstore: open: %w", err)
	}
	s := newStore(placesFor(option.RingScaleEachConn), o)
	s.cluster = len(option.InitAddress) > 1 && option.Sentinel.MasterSet == "" && !option.ForceSingleClient
	addr := strings.Join(option.InitAddress, ",")
	tracked := !o.noTracking && !option.DisableCache && !option.AlwaysRESP2
	s.link = &link{
		addr: func() string { return addr },
		dial: func() (*conn, error) { return s.connect(option, tracked) },
	}
	return s, nil
}

func checkOption(o *rueidis.ClientOption) error {
	switch {
	case len(o.InitAddress) == 0:
		return errors.New("InitAddress is empty: give the address of a server")
	case o.ClientTrackingOptions != nil:
		return errors.New("ClientTrackingOptions is set: the store sets it itself; leave it out")
	case o.PipelineMultiplex > 0:
		return errors.New("PipelineMultiplex is set: all commands of a key must share a connection; leave it out")
	case o.DisableAutoPipelining:
		return errors.New("DisableAutoPipelining is set: all commands of a key must share a connection; leave it out")
	case o.SendToReplicas != nil || o.ReplicaOnly || len(o.Standalone.ReplicaAddress) > 0:
		return errors.New("reads from replicas are set (SendToReplicas, ReplicaOnly or Standalone.ReplicaAddress): a replica lags, and a lease needs the primary; leave them out")
	}
	return nil
}

// connect makes the client. Where the server cannot track, it makes one that does
// not need it.
func (s *Store) connect(option rueidis.ClientOption, tracked bool) (*conn, error) {
	// Only one connection: rueidis chooses among several at random, and what a
	// connection has not read it hears no push for.
	option.PipelineMultiplex = -1
	// From the start on, since the other mode of rueidis does not heed cancellation.
	option.AlwaysPipelining = true
	option.DialCtxFn = s.watchedDial(&option)
	if tracked {
		option.ClientTrackingOptions = trackingOptions
		also := option.OnInvalidations
		option.OnInvalidations = func(keys []rueidis.RedisMessage) {
			s.pushed(keys)
			if v := s.survey.Load(); keys == nil && v != nil {
				v.hurry() // a connection was lost, perhaps with its node
			}
			if also != nil {
				also(keys)
			}
		}
	} else {
		option.DisableCache = true
	}
	client, err := rueidis.NewClient(option)
	if err == nil {
		c := &conn{CommandClient: client, client: client, push: tracked, shut: client.Close}
		if client.Mode() == rueidis.ClientModeCluster {
			c.survey = s.explore(client, nil)
		}
		if v := c.survey; v != nil {
			c.failed = v.hurry
			c.shut = func() {
				v.stop()
				client.Close()
			}
		}
		return c, nil
	}
	if client != nil {
		client.Close()
	}
	if tracked && errors.Is(err, rueidis.ErrNoCache) {
		return s.connect(option, false)
	}
	return nil, err
}
