package cli

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/onefill/onefill/store"
	"github.com/spf13/cobra"
)

const (
	keyHelp = `The key is given as it is in the store: a string or number as it is, of other types what
Options.Key makes of it.

`
	lookExitHelp = `Exit codes: 0 there is an answer, whatever it is; 1 the store could not be asked; 2 bad
input, 130 interrupted.`
)

const inspectLong = `It shows the state of the value (fresh, stale, void, not found, unstorable, undecodable,
absent), its age, for how long it is fresh and for how long it is kept, its version and
the row's own, its tags and whether one of them was invalidated, its size, codec and
checksum; the lease, if somebody loads the key now; and the last failure, if it is
remembered. The value itself is shown with --value only.

It takes no lease, changes nothing and waits for nobody: one question to the key's server,
and one more about the value's tags. Ages are counted by the clock of this machine.

A lease says which process holds it (its Options.Owner: by default host and process ID) and
has the token of the flight. On memcached a lease on an absent key is an empty item, which has
a number only; it says more from the first renewal on, after a third of its time.

`

func newInspect() *cobra.Command {
	var k keyFlags
	var showValue, raw bool
	cmd := &cobra.Command{
		Use:   "inspect --cache NAME KEY",
		Short: "Shows what the shared cache holds under a key: state, age, TTLs, version, tags, lease",
		Long:  inspectLong + keyHelp + storeHelp + lookExitHelp,
		Example: "  ONEFILL_REDIS=redis://localhost onefill inspect --cache users 42\n" +
			"  onefill inspect --cache users --memcached host1:11211,host2:11211 --json 42\n" +
			"  onefill inspect --cache users --raw 42 > value",
		RunE: func(cmd *cobra.Command, args []string) error {
			if raw && (k.asJSON || showValue) {
				return badInput("--raw: excludes --json and --value")
			}
			if err := k.parse(cmd, args); err != nil {
				return err
			}
			return k.with(cmd.Context(), func(ctx context.Context, in store.Inspector) error {
				l, err := k.look(ctx, in)
				if err != nil {
					return err
				}
				return printInspection(cmd.OutOrStdout(), l, k.asJSON, showValue, raw)
			})
		},
	}
	k.register(cmd)
	cmd.Flags().BoolVar(&showValue, "value", false, "show the value too: text as it is, other bytes in base64")
	cmd.Flags().BoolVar(&raw, "raw", false, "write the value's bytes, and nothing else")
	byHand(cmd.Flags(), "value", "raw")
	return cmd
}

func printInspection(w io.Writer, l *look, asJSON, showValue, raw bool) error {
	line := l.line()
	switch {
	case raw && !l.hasValue():
		return fmt.Errorf("there is no value under %q: its state is %s", l.key, strings.ReplaceAll(line.State, "_", " "))
	case raw:
		_, err := w.Write(l.payload())
		return err
	case showValue && l.hasValue():
		line.setValue(l.payload())
	}
	if asJSON {
		return printJSON(w, line)
	}
	return line.print(w)
}

// inspectLine is what --json prints. What is not there is null or left out; an age, and
// what is left of something, is in milliseconds, -1 for what does not end.
type inspectLine struct {
	Cache  string `json:"cache"`
	Key    string `json:"key"`
	Server string `json:"server"`
	State  string `json:"state"`
	// Why says what is the matter with a value that is void or undecodable.
	Why     string       `json:"why,omitempty"`
	Value   *valueLine   `json:"value"`
	Lease   *leaseLine   `json:"lease"`
	Failure *failureLine `json:"failure"`
}

type valueLine struct {
	Bytes        int        `json:"bytes"` // as stored, envelope included
	LeftMS       int64      `json:"left_ms"`
	Foreign      string     `json:"foreign,omitempty"`
	ChecksumOK   bool       `json:"checksum_ok"`
	PayloadBytes int        `json:"payload_bytes"`
	Created      *time.Time `json:"created,omitempty"`
	AgeMS        int64      `json:"age_ms"`
	FreshForMS   int64      `json:"fresh_for_ms"` // negative: stale since
	Version      string     `json:"version,omitempty"`
	LeaseGranted *time.Time `json:"lease_granted,omitempty"` // of the version
	RowVersion   uint64     `json:"row_version,omitempty"`
	Codec        string     `json:"codec,omitempty"`
	CodecID      uint32     `json:"codec_id"`
	LoadCostMS   float64    `json:"load_cost_ms"`
	Epoch        uint64     `json:"epoch,omitempty"`
	Tags         []tagLine  `json:"tags,omitempty"`
	Text         *string    `json:"text,omitempty"`
	Base64       *string    `json:"base64,omitempty"`
}

// tagLine is one tag of the value. The whole cache's has the name "".
type tagLine struct {
	Tag        string     `json:"tag"`
	Valid      bool       `json:"valid"`
	Generation uint64     `json:"generation"` // 0: there is none
	Voided     *time.Time `json:"voided,omitempty"`
}

type leaseLine struct {
	ID string `json:"id"`
	// Owner is the holder's Options.Owner, "" where the store does not know it.
	Owner  string `json:"owner"`
	Token  string `json:"token,omitempty"`
	Try    uint32 `json:"try,omitempty"`
	LeftMS int64  `json:"left_ms"`
}

type failureLine struct {
	Message  string     `json:"message"`
	Failures uint64     `json:"failures"` // in a row
	Failed   *time.Time `json:"failed,omitempty"`
	BlocksMS int64      `json:"blocks_ms"` // 0: the next reader loads
	LeftMS   int64      `json:"left_ms"`
}

// held says who holds the lease, and for how long.
func (n *leaseLine) held() string {
	owner := n.Owner
	if owner == "" {
		owner = "a process that is not known"
	}
	return fmt.Sprintf("%s (lease ends in %s)", owner, span(n.LeftMS))
}

// setValue shows a value as text if it is readable as that.
func (l *inspectLine) setValue(payload []byte) {
	if text := string(payload); printableText(text) {
		l.Value.Text = &text
		return
	}
	text := base64.StdEncoding.EncodeToString(payload)
	l.Value.Base64 = &text
}

// printableText: nothing that a terminal would take for a command.
func printableText(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

func (l *inspectLine) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	row("key", "%q of %s at %s", l.Key, l.Cache, l.Server)
	state := strings.ReplaceAll(l.State, "_", " ")
	if l.Lease != nil {
		state += ", leased"
	}
	if l.Why != "" {
		state += ": " + l.Why
	}
	row("state", "%s", state)
	if v := l.Value; v != nil {
		v.print(row)
	}
	if n := l.Lease; n != nil {
		what := "token " + n.Token
		if n.Token == "" {
			what = "item number " + n.ID + " (until it is renewed, memcached keeps neither token nor holder of a lease on an absent key)"
		} else if n.Try > 0 {
			what += fmt.Sprintf(", try %d", n.Try)
		}
		row("lease", "held by %s, %s", n.held(), what)
	}
	if f := l.Failure; f != nil {
		state := "remembered, blocks nobody any more"
		if f.BlocksMS != 0 {
			state = "blocks for " + span(f.BlocksMS)
		}
		row("failure", "%q, %d in a row; %s; forgotten in %s", f.Message, f.Failures, state, span(f.LeftMS))
	}
	return errors.Join(t.Flush(), l.printValue(w))
}

func (v *valueLine) print(row func(name, format string, args ...any)) {
	if v.Created != nil {
		age := span(v.AgeMS)
		if v.AgeMS < 0 {
			age = span(-v.AgeMS) + " in the future: the clock of this machine is behind that of the one that loaded it"
		}
		row("age", "%s, loaded at %s in %v", age, stamp(*v.Created), fromMilliseconds(v.LoadCostMS))
		if v.FreshForMS > 0 {
			row("fresh", "for %s more", span(v.FreshForMS))
		} else {
			row("fresh", "until %s ago", span(-v.FreshForMS))
		}
	}
	row("kept", "for %s more", span(v.LeftMS))
	if v.Version != "" {
		row("version", "%s, lease granted at %s", v.Version, stamp(*v.LeaseGranted))
	}
	if v.RowVersion != 0 {
		row("row version", "%d", v.RowVersion)
	}
	row("size", "%d bytes, %d of them the value's", v.Bytes, v.PayloadBytes)
	if v.CodecID != 0 {
		row("codec", "%s", v.codec())
	}
	if v.ChecksumOK {
		row("checksum", "ok")
	}
	for _, tag := range v.Tags {
		name, state := fmt.Sprintf("%q", tag.Tag), "valid"
		if tag.Tag == "" {
			name = "(the whole cache)"
		}
		switch {
		case tag.Valid && tag.Generation == 0:
			state = "valid, has no generation yet"
		case !tag.Valid && tag.Voided != nil:
			state = "void, since " + stamp(*tag.Voided)
		case !tag.Valid:
			state = "void: its generation was lost"
		}
		row("tag", "%s %s", name, state)
	}
}

func (v *valueLine) codec() string {
	if v.Codec != "" {
		return v.Codec
	}
	return fmt.Sprintf("id %08x, the FNV-1a of a name that is not one of onefill's own", v.CodecID)
}

func (l *inspectLine) printValue(w io.Writer) (err error) {
	switch v := l.Value; {
	case v == nil:
	case v.Text != nil:
		_, err = fmt.Fprintf(w, "value\n%s\n", *v.Text)
	case v.Base64 != nil:
		_, err = fmt.Fprintf(w, "value, base64\n%s\n", *v.Base64)
	}
	return err
}

// span is a number of milliseconds as people read it.
func span(ms int64) string {
	if ms < 0 {
		return "ever"
	}
	d := time.Duration(ms) * time.Millisecond
	switch {
	case d >= 10*time.Minute:
		d = d.Round(time.Second)
	case d >= 10*time.Second:
		d = d.Round(100 * time.Millisecond)
	}
	return d.String()
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

func fromMilliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
