package sqsqueue

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Options say what a queue on SQS must be like. The zero value is right for most; each
// field says its default.
type Options struct {
	// Visibility is what the queue's VisibilityTimeout must be at least, and what Create
	// makes it: how long a message stays away from others if whoever received it does not
	// say (a Request always says: its Lease). Whole seconds, 1 s to 12 h, default 120 s.
	Visibility time.Duration
	// HandlerTimeout is how long a handler may take, the worker's MaxRunTime. A queue
	// whose VisibilityTimeout is shorter is refused, since a consumer of it that does not
	// extend (a Lambda, a script) would get every slow message twice. 0, the default, is
	// for workers that are the only consumers: they extend.
	HandlerTimeout time.Duration
	// Wait is the longest long poll, the queue's ReceiveMessageWaitTimeSeconds and
	// Caps.MaxWait. Whole seconds, 1 s to 20 s, default 20 s. The HTTP client's own
	// timeouts must exceed it by 10 s.
	Wait time.Duration
	// MaxReceives is what the redrive policy's maxReceiveCount must be at least, and what
	// Create makes it: how often a message is received before SQS moves it to the dead
	// letters by itself. Whatever comes back counts, also what was not begun. Default 5.
	MaxReceives int
	// Retention is for how long Create makes the queue keep a message that nobody
	// deletes. Whole seconds, 1 min to less than 14 d, default 4 d. The dead letters are
	// kept for 14 d, the most there is: their age counts from when the job was sent
	// first, so a shorter time would drop them unseen.
	Retention time.Duration
	// Adjust makes New change the settings that it would refuse the queue for, and
	// create the dead-letter queue if there is none.
	Adjust bool
	// DedupeByVersion makes a FIFO queue drop a job of the same Kind, Key and Version (if
	// it is not 0) as one that was sent in the five minutes before, done or not. Without
	// it nothing is dropped but the second copy of a request whose answer was lost.
	DedupeByVersion bool
	// Logger hears of what needs an operator. Default slog.Default().
	Logger *slog.Logger
}

const (
	defaultVisibility  = 120 * time.Second
	defaultWait        = 20 * time.Second
	defaultMaxReceives = 5
	defaultRetention   = 4 * 24 * time.Hour

	maxVisibility = 12 * time.Hour
	maxWait       = 20 * time.Second
	maxDelay      = 15 * time.Minute
	maxRetention  = 14 * 24 * time.Hour
	maxReceives   = 1000
)

// one takes the only Options of a call, with the defaults.
func one(opts []Options) (Options, error) {
	if len(opts) > 1 {
		return Options{}, errors.New("more than one Options")
	}
	var o Options
	if len(opts) == 1 {
		o = opts[0]
	}
	o.Visibility = cmp.Or(o.Visibility, max(defaultVisibility, seconds(o.HandlerTimeout)))
	o.Wait = cmp.Or(o.Wait, defaultWait)
	o.MaxReceives = cmp.Or(o.MaxReceives, defaultMaxReceives)
	o.Retention = cmp.Or(o.Retention, defaultRetention)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o, o.validate()
}

func (o *Options) validate() error {
	for _, f := range []struct {
		name     string
		is       time.Duration
		from, to time.Duration
	}{
		{"Visibility", o.Visibility, time.Second, maxVisibility},
		{"Wait", o.Wait, time.Second, maxWait},
		{"Retention", o.Retention, time.Minute, maxRetention - time.Second},
	} {
		if f.is < f.from || f.is > f.to || f.is%time.Second != 0 {
			return fmt.Errorf("Options.%s is %v; whole seconds from %v to %v are possible", f.name, f.is, f.from, f.to)
		}
	}
	switch {
	case o.HandlerTimeout < 0:
		return fmt.Errorf("Options.HandlerTimeout is negative: %v", o.HandlerTimeout)
	case o.HandlerTimeout > o.Visibility:
		return fmt.Errorf("Options.Visibility of %v is shorter than Options.HandlerTimeout of %v: the message would come back while its handler runs", o.Visibility, o.HandlerTimeout)
	case o.MaxReceives < 1 || o.MaxReceives > maxReceives:
		return fmt.Errorf("Options.MaxReceives is %d; 1 to %d are possible", o.MaxReceives, maxReceives)
	}
	return nil
}

// seconds rounds up to whole seconds, what SQS counts in.
func seconds(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return (d-1)/time.Second*time.Second + time.Second
}
