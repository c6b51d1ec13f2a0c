package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Tagger may be implemented by a session. It lets a cache void all values under a tag
// at once, however many there are, without a list of them.
//
// Loads and invalidations are ordered by a number that only grows, the epoch of the
// cache's name. A value knows the epoch that was read before its load began, and its
// tags; VoidTags raises the epoch and makes the new one the generation of the tags. A
// value is valid as long as no generation of its tags is above the epoch of its load.
//
// What is lost (evicted, flushed, expired) must make values invalid, never valid: an
// epoch that is made anew is larger than every one before, for which the clock of the
// server, or of the client where the server shows none, is good enough, in microseconds;
// and so is each one that VoidTags makes, so that an epoch that a failover has turned back
// does no harm. A generation that is made anew is the present epoch: then only values are
// valid whose loads began after the last tag, whichever it was, was voided.
//
// Where the store can push, a session that has read a generation is told of its next
// change by anybody else, or of its loss, through [Events.Voided]; one that has read the
// epoch, of its next change or loss through [Events.Raised].
type Tagger interface {
	// Epoch returns the epoch, and makes it if there is none.
	Epoch(ctx context.Context) (uint64, error)
	// Generations returns the generation of each tag, making those that are not there.
	// They are kept for keep from now at least.
	Generations(ctx context.Context, keep time.Duration, tags ...string) ([]uint64, error)
	// VoidTags gives the tags a new generation, above every epoch before. It is kept for
	// keep at least. Nil means that it was applied to all of them.
	VoidTags(ctx context.Context, keep time.Duration, tags ...string) error
}

// Limits of tags.
const (
	// MaxTags is how many tags a value may have.
	MaxTags = 64
	// MaxTagBytes is how long a tag may be. The empty tag, which the whole cache is
	// under, is valid for a Tagger only.
	MaxTagBytes = 250
)

// ValidTags says whether a value can have these tags.
func ValidTags(tags []string) error {
	if len(tags) > MaxTags {
		return fmt.Errorf("%d tags, at most %d are allowed", len(tags), MaxTags)
	}
	for _, tag := range tags {
		if err := ValidTag(tag); err != nil {
			return err
		}
	}
	return nil
}

// ValidTag says whether tag can be one of a value's tags.
func ValidTag(tag string) error {
	switch {
	case tag == "":
		return errors.New("a tag is empty")
	case len(tag) > MaxTagBytes:
		return fmt.Errorf("the tag %q has %d bytes, at most %d are allowed", tag[:32]+"...", len(tag), MaxTagBytes)
	case strings.ContainsFunc(tag, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("the tag %q has a control character", tag)
	}
	return nil
}
