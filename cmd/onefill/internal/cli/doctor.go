package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const doctorLong = `Each server that is given is asked whether it will do for onefill, and how it is doing: its
version, what the user may do, how it is set up, its clock, how long a round trip takes.
What is found is ok, a warning, or a failure, with what it means and what to do. What the
user may not ask is said to be unknown, and counts as nothing.

It only reads. The servers' own counts of commands and a script in Redis's cache of scripts
are all that shows it was there.

Redis or Valkey is that of ONEFILL_REDIS or --redis, PostgreSQL that of ONEFILL_POSTGRES or
--postgres: the command line takes no passwords. memcached servers are those of
--memcached, a queue on SQS is that of --sqs. In a cluster each primary is asked.

`

const doctorExitHelp = `Exit codes: 0 nothing has failed (with --strict: and there is no warning); 1 something has;
2 bad input, 130 interrupted.`

// doctorFlags is one run of the command.
type doctorFlags struct {
	storeFlags
	postgres, schema string
	sqs              string
	handlerTimeout   time.Duration
	timeout          time.Duration // of one question
	storeTimeout     time.Duration
	maxLag           time.Duration
	maxSnapshot      time.Duration
	trips            int
	asJSON, strict   bool

	findings []finding
}

// finding is what one check has found: a line of --json.
type finding struct {
	Server string `json:"server"` // "redis at 127.0.0.1:6379"
	Check  string `json:"check"`
	result
}

// result is a finding without where it was found.
type result struct {
	Level  level  `json:"level"`
	Found  string `json:"found"`
	Advice string `json:"advice,omitempty"` // what it means, and what to do
}

type level string

const (
	levelOK      level = "ok"
	levelWarn    level = "warn"
	levelFail    level = "fail"
	levelUnknown level = "unknown" // it could not be asked
)

func fine(format string, args ...any) result {
	return result{Level: levelOK, Found: fmt.Sprintf(format, args...)}
}

func unknown(format string, args ...any) result {
	return result{Level: levelUnknown, Found: fmt.Sprintf(format, args...)}
}

func warn(advice, format string, args ...any) result {
	return result{levelWarn, fmt.Sprintf(format, args...), advice}
}

func failed(advice, format string, args ...any) result {
	return result{levelFail, fmt.Sprintf(format, args...), advice}
}

func newDoctor() *cobra.Command {
	var d doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Checks the servers that a cache and its queue use, and says what to do",
		Long:  doctorLong + doctorExitHelp,
		Example: "  ONEFILL_REDIS=redis://localhost onefill doctor\n" +
			"  ONEFILL_POSTGRES=postgres://app@localhost/shop onefill doctor --memcached a:11211,b:11211\n" +
			"  onefill doctor --redis redis://localhost --strict",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	f := cmd.Flags()
	d.registerServers(f)
	registerPostgres(f, &d.postgres, &d.schema)
	f.StringVar(&d.sqs, "sqs", "", "URL of a queue on Amazon SQS; the credentials are those that AWS's own programs find")
	f.DurationVar(&d.handlerTimeout, "handler-timeout", 0, "how long a handler of jobs on SQS may take (default: as long as it extends)")
	f.DurationVar(&d.timeout, "timeout", 5*time.Second, "bound on each question to a server")
	f.DurationVar(&d.storeTimeout, "store-timeout", 250*time.Millisecond, "the caches' Options.StoreTimeout, which round trips are held against")
	f.DurationVar(&d.maxLag, "max-lag", time.Minute, "longest lag of the queue that is fine")
	f.DurationVar(&d.maxSnapshot, "max-snapshot", 10*time.Minute, "longest time that a transaction of PostgreSQL may be open")
	f.IntVar(&d.trips, "round-trips", 100, "round trips to measure for each server")
	f.BoolVar(&d.strict, "strict", false, "fail with exit code 1 if there is a warning, too")
	f.BoolVar(&d.asJSON, "json", false, "print JSON, a line for each finding, and nothing else")
	byHand(f, "strict")
	return cmd
}

func (d *doctorFlags) check(cmd *cobra.Command) error {
	switch {
	case d.redis == "" && d.memcached == "" && d.postgres == "" && d.sqs == "":
		return badInput("--redis, --memcached, --postgres, --sqs: no server is given; set ONEFILL_REDIS to redis://user:password@host:6379, for example")
	case d.handlerTimeout < 0:
		return badInput("--handler-timeout: %v; it must not be negative", d.handlerTimeout)
	case d.timeout <= 0 || d.storeTimeout <= 0 || d.maxLag <= 0 || d.maxSnapshot <= 0:
		return badInput("--timeout, --store-timeout, --max-lag, --max-snapshot: %v, %v, %v, %v; they must be positive", d.timeout, d.storeTimeout, d.maxLag, d.maxSnapshot)
	case d.trips < 1 || d.trips > 100_000:
		return badInput("--round-trips: %d; allowed is 1 to 100000", d.trips)
	}
	if d.sqs != "" {
		if err := checkSQS(d.sqs); err != nil {
			return err
		}
	}
	if err := d.checkServers(cmd.Flags()); err != nil {
		return err
	}
	for _, name := range []string{"postgres", "sqs"} {
		if err := withoutSecret(cmd.Flags(), name); err != nil {
			return err
		}
	}
	return nil
}

func (d *doctorFlags) run(cmd *cobra.Command) error {
	if err := d.check(cmd); err != nil {
		return err
	}
	bar := newProgress(cmd.ErrOrStderr())
	patients, err := d.patients()
	if err != nil {
		return err
	}
	for i, p := range patients {
		if bar.terminal {
			bar.step(p.what, i+1, len(patients))
		}
		p.examine(cmd.Context(), d)
		if err := cmd.Context().Err(); err != nil {
			bar.done()
			return err
		}
	}
	bar.done()
	return d.report(cmd.OutOrStdout())
}

// patient is a service to be looked at.
type patient struct {
	what    string
	examine func(ctx context.Context, d *doctorFlags)
}

// patients opens nothing yet; the error is for URLs that are none.
func (d *doctorFlags) patients() (all []patient, err error) {
	if d.redis != "" {
		option, err := redisOption(d.redis)
		if err != nil {
			return nil, err
		}
		all = append(all, patient{"redis", func(ctx context.Context, d *doctorFlags) { examineRedis(ctx, d, option) }})
	}
	if d.memcached != "" {
		all = append(all, patient{"memcached", func(ctx context.Context, d *doctorFlags) {
			examineMemcached(ctx, d, d.servers)
		}})
	}
	if d.postgres != "" {
		database, err := openDatabase(d.postgres, d.schema)
		if err != nil {
			return nil, err
		}
		all = append(all, patient{"postgres", database.examine})
	}
	if d.sqs != "" {
		all = append(all, patient{"sqs", examineSQS})
	}
	return all, nil
}

// note keeps a finding.
func (d *doctorFlags) note(server, check string, r result) {
	r.Found, r.Advice = oneLine(r.Found), oneLine(r.Advice)
	d.findings = append(d.findings, finding{server, check, r})
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func (d *doctorFlags) count(l level) int {
	n := 0
	for _, f := range d.findings {
		if f.Level == l {
			n++
		}
	}
	return n
}

func (d *doctorFlags) report(w io.Writer) error {
	if err := d.print(w); err != nil {
		return err
	}
	failures, warnings := d.count(levelFail), d.count(levelWarn)
	switch {
	case failures > 0:
		return &exitError{exitFailed, fmt.Errorf("%s failed", plural(failures, "check"))}
	case d.strict && warnings > 0:
		return &exitError{exitFailed, fmt.Errorf("%s, and --strict is given", plural(warnings, "warning"))}
	}
	return nil
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func (d *doctorFlags) print(w io.Writer) error {
	if d.asJSON {
		for _, f := range d.findings {
			if err := printJSON(w, f); err != nil {
				return err
			}
		}
		return nil
	}
	paint, advice := painter(colorful(w)), strings.Repeat(" ", 25)
	last := ""
	var b strings.Builder
	for _, f := range d.findings {
		if f.Server != last {
			last = f.Server
			fmt.Fprintf(&b, "%s\n", f.Server)
		}
		found := strings.TrimSpace(wrap(f.Found, advice, 100))
		fmt.Fprintf(&b, "  %s %-14s %s\n", paint(f.Level), f.Check, found)
		if f.Advice != "" {
			fmt.Fprintf(&b, "%s\n", wrap(f.Advice, advice, 100))
		}
	}
	fmt.Fprintf(&b, "%d ok, %s, %d failed, %d unknown\n", d.count(levelOK), plural(d.count(levelWarn), "warning"), d.count(levelFail), d.count(levelUnknown))
	_, err := io.WriteString(w, b.String())
	return err
}

// painter pads a level, and colours it.
func painter(colours bool) func(level) string {
	codes := map[level]string{levelOK: "32", levelWarn: "33", levelFail: "31", levelUnknown: "2"}
	return func(l level) string {
		text := fmt.Sprintf("%-7s", l)
		if !colours {
			return text
		}
		return "\x1b[" + codes[l] + "m" + text + "\x1b[0m"
	}
}

// wrap breaks text into indented lines.
func wrap(text, indent string, width int) string {
	var lines []string
	line := indent
	for _, word := range strings.Fields(text) {
		if line != indent && len(line)+1+len(word) > width {
			lines, line = append(lines, line), indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	return strings.Join(append(lines, line), "\n")
}

// Checks that several services have.

// clockResult judges how far a server's clock is from this machine's. Half of the round
// trip, and the clock's own step, is what nobody knows.
func clockResult(server, here time.Time, unsure time.Duration) result {
	const most = time.Second
	skew := server.Sub(here)
	text := fmt.Sprintf("%v ahead of this machine's", skew.Round(time.Millisecond))
	switch {
	case skew.Abs() <= unsure:
		text = "that of this machine"
	case skew < 0:
		text = fmt.Sprintf("%v behind this machine's", (-skew).Round(time.Millisecond))
	}
	text += fmt.Sprintf(", give or take %v", unsure.Round(time.Microsecond))
	if skew.Abs()-unsure <= most {
		return fine("%s", text)
	}
	return warn("Ages and freshness are counted by the clocks of the processes that load and read, epochs of tags by the store's or the processes'. Clocks that differ make values stale too early or too late. Run an NTP client on all machines.", "%s", text)
}

// roundTripResult judges the times of round trips.
func (d *doctorFlags) roundTripResult(took []time.Duration, bound time.Duration, of string) result {
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[min(len(took)-1, len(took)*99/100)]
	text := fmt.Sprintf("p50 %v, p99 %v of %d", p50.Round(time.Microsecond), p99.Round(time.Microsecond), len(took))
	switch {
	case p99 >= bound:
		return failed(fmt.Sprintf("One in a hundred takes longer than %s (%v): such operations fail. Look for a network in between, a server that is busy or swaps, or slow commands of others.", of, bound), "%s", text)
	case p99 >= bound/4:
		return warn(fmt.Sprintf("That is more than a quarter of %s (%v): a little load will make operations fail.", of, bound), "%s", text)
	}
	return fine("%s", text)
}

// measure makes round trips one after the other.
func (d *doctorFlags) measure(ctx context.Context, trip func(context.Context) error) (took []time.Duration, err error) {
	for range d.trips {
		start := time.Now()
		_, err := bounded(ctx, d.timeout, func(ctx context.Context) (struct{}, error) { return struct{}{}, trip(ctx) })
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(start))
	}
	return took, nil
}
