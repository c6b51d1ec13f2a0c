// Package bus is the contract of a message bus by which the caches of a fleet tell each
// other what they have changed, where the store that they share cannot push. It imports
// the standard library only.
//
// # What a bus promises
//
// Little, so that any publish and subscribe will do. A message reaches each subscriber of
// its topic, the publisher's own subscription too, once, soon, and in the order in which
// one Publish after the other was called. All of that as a rule: a message may be lost, come
// late, come twice, or be overtaken. The caches number their messages and find out.
//
// What a bus must do is to say when it knows that messages may have been lost, since its
// connection was: see [Bus.Subscribe].
package bus

import (
	"context"
	"errors"
)

// Bus carries messages between processes. It is safe for concurrent use and serves any
// number of caches. A cache does not close it: it belongs to whoever made it.
type Bus interface {
	// Publish sends a message of at most [MaxMessageBytes] to all who have subscribed to
	// the topic. It does not keep the message. Nil means that the message is on its way, and
	// neither that somebody hears it nor that everybody does; after an error it may be on its
	// way, too. Publish ends when ctx does.
	Publish(ctx context.Context, topic string, message []byte) error

	// Subscribe makes heard be called with each message of the topic. The subscription is
	// in force when Subscribe returns; ctx bounds how long that may take, and nothing else.
	//
	// If the connection is lost later, the bus makes another one, for as long as it takes,
	// and then calls lost: when the new subscription is in force, so that who forgets at
	// that moment what it knows has missed nothing afterwards. Calls of lost without need
	// are allowed.
	//
	// The functions are called one at a time, from any goroutine; they return quickly, never
	// block, never call the bus, and do not keep the message. When stop has returned,
	// neither of them is called any more. Stop may be called more than once, and after the
	// bus was closed.
	Subscribe(ctx context.Context, topic string, heard func(message []byte), lost func()) (stop func(), err error)
}

// MaxMessageBytes is the longest message. It leaves room for a key of any length; most
// messages are a quarter of it at most.
const MaxMessageBytes = 96 << 10

// ErrClosed is wrapped by the errors of a bus that is closed.
var ErrClosed = errors.New("the bus is closed")
