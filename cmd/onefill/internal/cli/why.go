package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/onefill/onefill/store"
	"github.com/spf13/cobra"
)

const whyLong = `It follows the read path (docs/guarantees.md) of a reader that has nothing in its own memory,
and prints what that reader would get and, step by step, why. The reader's options are given
as flags, since the store does not know them: without --stale-for a stale value is no answer.

What a process has in its own memory (Options.Local) is not visible from here: it serves that
for up to Local.TTL without asking the store. Nor is what a process owes to the store since
an outage, nor an early refresh (Options.EarlyRefresh), which comes at random.

`

// reader is how the cache that is asked about has been made.
type reader struct {
	staleFor, staleOnError, waitTimeout time.Duration
	codec                               string
	tags                                bool
}

func newWhy() *cobra.Command {
	var k keyFlags
	var r reader
	cmd := &cobra.Command{
		Use:   "why --cache NAME KEY",
		Short: "Says what a reader who asks for a key now would get from the shared cache, and why",
		Long:  whyLong + keyHelp + storeHelp + lookExitHelp,
		Example: "  ONEFILL_REDIS=redis://localhost onefill why --cache users 42\n" +
			"  onefill why --cache users --stale-for 1h --stale-on-error 24h 42",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.check(); err != nil {
				return err
			}
			if err := k.parse(cmd, args); err != nil {
				return err
			}
			return k.with(cmd.Context(), func(ctx context.Context, in store.Inspector) error {
				l, err := k.look(ctx, in)
				if err != nil {
					return err
				}
				return printVerdict(cmd.OutOrStdout(), l, r.judge(l), k.asJSON)
			})
		},
	}
	k.register(cmd)
	f := cmd.Flags()
	f.DurationVar(&r.staleFor, "stale-for", 0, "the reader's Options.StaleFor")
	f.DurationVar(&r.staleOnError, "stale-on-error", 0, "the reader's Options.StaleOnError")
	f.DurationVar(&r.waitTimeout, "wait-timeout", 0, "the reader's Options.WaitTimeout (default: not looked at)")
	f.StringVar(&r.codec, "codec", "", "the name of the reader's Options.Codec: json, raw, or one of your own (default: not looked at)")
	f.BoolVar(&r.tags, "tags", false, "the reader has Options.Tags")
	byHand(f, "tags")
	return cmd
}

func (r *reader) check() error {
	for name, d := range map[string]time.Duration{"stale-for": r.staleFor, "stale-on-error": r.staleOnError, "wait-timeout": r.waitTimeout} {
		if d < 0 {
			return badInput("--%s: %v; it must not be negative", name, d)
		}
	}
	return nil
}

// verdict is what a reader gets, and the reasons in the order of the read path.
type verdict struct {
	Outcome string   `json:"outcome"`
	Text    string   `json:"text"`
	Reasons []reason `json:"reasons"`
	// WaitMS is for how long the reader may have to wait for somebody else's load, until the
	// lease ends by itself.
	WaitMS int64 `json:"wait_ms,omitempty"`
}

type reason struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// The outcomes.
const (
	getsFresh    = "fresh"
	getsStale    = "stale"     // and one refresh follows
	getsNotFound = "not_found" // onefill.ErrNotFound
	getsWait     = "wait"      // for somebody else's load
	getsLoad     = "load"
	getsAlone    = "load_alone" // without a lease: the value cannot be stored
	getsFailure  = "failure"    // the error of a load that has failed lately
	getsOnError  = "stale_on_error"
)

func (v *verdict) because(code, format string, args ...any) {
	v.Reasons = append(v.Reasons, reason{code, fmt.Sprintf(format, args...)})
}

func (v *verdict) is(outcome, format string, args ...any) *verdict {
	v.Outcome, v.Text = outcome, fmt.Sprintf(format, args...)
	return v
}

// judge follows the read path.
func (r *reader) judge(l *look) *verdict {
	v := &verdict{}
	v.because("local_unseen", "a process may have the key in its own memory, and serves that without asking; this is for one that has not")
	stale := false // there is a stale value, which may be served if nothing better is to be had
	switch {
	case !l.holding.Item.Found:
		v.because("absent", "the store has no value")
	case l.unreadable != nil:
		v.because("undecodable", "what lies in the store is no value: %v; that counts as a miss, and the next fill replaces it", l.unreadable)
	case r.codec != "" && l.env.Kind == store.KindValue && l.env.Codec != codecID(r.codec):
		v.because("other_codec", "the value was written by another codec than %q (%s): that counts as a miss, and the next fill replaces it", r.codec, l.valueLine().codec())
	case r.tags && l.env.Epoch == 0:
		v.because("untagged", "the value was written by a process without Options.Tags: to a reader with tags that is void")
	default:
		done, old := r.judgeValue(l, v)
		if done != nil {
			return done
		}
		stale = old
	}
	return r.judgeLease(l, v, stale)
}

// judgeValue is about a value that can be read. It returns the verdict, or whether the
// value may be served although it is stale if it cannot be loaded.
func (r *reader) judgeValue(l *look, v *verdict) (done *verdict, stale bool) {
	if i, void := l.voided(); void {
		code := "tag_voided"
		if l.tagState.Generations[i] == 0 {
			code = "tag_lost"
		}
		v.because(code, "the value is void: %s", l.tagText(i))
		return nil, false
	}
	fresh := l.freshFor()
	left := span(fresh.Milliseconds())
	switch {
	case fresh > 0 && l.env.Kind == store.KindUnstorable:
		v.because("unstorable", "the store has a mark, for %s more: the value is too large to be stored, or its codec refuses it", left)
		return v.is(getsAlone, "each process loads the value by itself, without waiting for the others"), false
	case fresh > 0 && l.env.Kind == store.KindNotFound:
		v.because("fresh", "the origin said %s ago that there is no such row, and that counts for %s more (NotFoundTTL)", span(l.valueLine().AgeMS), left)
		return v.is(getsNotFound, "ErrNotFound, without a load"), false
	case fresh > 0:
		v.because("fresh", "the store has a value of %s ago, which is fresh for %s more", span(l.valueLine().AgeMS), left)
		return v.is(getsFresh, "the value, without a load"), false
	}
	ago := -fresh
	if l.env.Kind != store.KindValue {
		v.because("expired", "what the store has (%s) has not counted any more for %s", kindText(l.env.Kind), span(ago.Milliseconds()))
		return nil, false
	}
	v.because("stale", "the store has a value, which has been stale for %s", span(ago.Milliseconds()))
	if ago < r.staleFor {
		v.because("stale_for", "StaleFor (%v) allows it for %s more", r.staleFor, span((r.staleFor - ago).Milliseconds()))
		r.refresh(l, v)
		return v.is(getsStale, "the stale value at once"), true
	}
	if r.staleFor > 0 {
		v.because("too_stale", "StaleFor (%v) does not allow it any more", r.staleFor)
	} else {
		v.because("no_stale_for", "StaleFor is not set, so a stale value is no answer")
	}
	return nil, ago < r.staleOnError
}

// refresh says what becomes of a stale value that is served.
func (r *reader) refresh(l *look, v *verdict) {
	switch lease, failure := l.leaseLine(), l.holding.Failure; {
	case lease != nil:
		v.because("leased", "somebody loads it already: held by %s", lease.held())
	case failure.Blocks > 0:
		v.because("failed", "the last load failed (%s): nobody tries for %s more", failureText(l), span(leftMS(failure.Blocks)))
	default:
		v.because("refresh", "no lease is held: the reader's process refreshes it in the background")
	}
}

// judgeLease is about a reader who has found nothing that it may be answered with.
func (r *reader) judgeLease(l *look, v *verdict, stale bool) *verdict {
	lease, failure := l.holding.Lease, l.holding.Failure
	onError := func() {
		if stale {
			v.because("stale_on_error", "StaleOnError (%v) allows the stale value if it cannot be loaded", r.staleOnError)
		}
	}
	switch {
	case failure.Blocks > 0:
		v.because("failed", "the last load failed (%s), and nobody tries for %s more", failureText(l), span(leftMS(failure.Blocks)))
		if onError(); stale {
			return v.is(getsOnError, "the stale value, without a load")
		}
		return v.is(getsFailure, "the error of that load, without a load")
	case lease.ID != "":
		v.because("leased", "somebody loads it now: held by %s; it is renewed while the load goes on", l.leaseLine().held())
		v.WaitMS = leftMS(lease.Left)
		if r.waitTimeout > 0 && r.waitTimeout < lease.Left {
			v.because("wait_timeout", "WaitTimeout (%v) is shorter than that: the reader may give up first, with ErrWaitTimeout", r.waitTimeout)
			v.WaitMS = r.waitTimeout.Milliseconds()
		}
		onError()
		return v.is(getsWait, "it waits for that load, and gets its value; should the holder be dead, one of those who wait loads when the lease has ended")
	}
	if failure.Record != nil {
		v.because("failed_before", "the last load failed (%s); it blocks nobody any more", failureText(l))
	}
	v.because("free", "no lease is held: the reader takes it")
	onError()
	return v.is(getsLoad, "it loads the value, once for all who ask meanwhile, in all processes")
}

func kindText(kind store.Kind) string {
	if kind == store.KindNotFound {
		return "that the row does not exist"
	}
	return "a mark that the value cannot be stored"
}

func failureText(l *look) string {
	f := l.line().Failure
	if f.Failures > 1 {
		return fmt.Sprintf("%q, %d in a row", f.Message, f.Failures)
	}
	return fmt.Sprintf("%q", f.Message)
}

// whyLine is what --json prints.
type whyLine struct {
	Cache  string `json:"cache"`
	Key    string `json:"key"`
	Server string `json:"server"`
	// Lease is that of whoever loads the key now, null if nobody does.
	Lease *leaseLine `json:"lease"`
	verdict
}

func printVerdict(w io.Writer, l *look, v *verdict, asJSON bool) error {
	if asJSON {
		return printJSON(w, whyLine{l.cache, l.key, l.holding.Server, l.leaseLine(), *v})
	}
	if _, err := fmt.Fprintf(w, "A reader of %q of %s, at %s, gets: %s.\n", l.key, l.cache, l.holding.Server, v.Text); err != nil {
		return err
	}
	for i, r := range v.Reasons {
		if _, err := fmt.Fprintf(w, "  %d. %s\n", i+1, r.Text); err != nil {
			return err
		}
	}
	return nil
}
