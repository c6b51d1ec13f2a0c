package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/onefill/onefill/watch"
	"github.com/spf13/cobra"
)

const appHelp = `The caches are in the application's processes, so those are asked: each has a watch.Recorder as
the Observer of its caches, and serves it on a private port. --app says where, ONEFILL_APP does as
well; several are separated by commas.

`

// apps are the flags that say whom to ask, and about what.
type apps struct {
	urls       []string
	cache, key string
	timeout    time.Duration
	asJSON     bool
}

func (a *apps) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&a.urls, "app", nil, "URL of a process's watch.Recorder: http://127.0.0.1:6060/debug/onefill")
	f.StringVar(&a.cache, "cache", "", "only this cache (Options.Name)")
	f.StringVar(&a.key, "key", "", "only this key, as it is shown")
	f.DurationVar(&a.timeout, "timeout", 5*time.Second, "bound on each question to an application")
	f.BoolVar(&a.asJSON, "json", false, asJSONUsage)
	byHand(f, "cache", "key")
}

// check says what is wrong with the command line.
func (a *apps) check(cmd *cobra.Command) error {
	bad := func(format string, args ...any) error { return &exitError{exitInput, fmt.Errorf(format, args...)} }
	if len(a.urls) == 0 {
		return bad("--app: no application is given; set ONEFILL_APP to the URL of its watch.Recorder, http://127.0.0.1:6060/debug/onefill")
	}
	if a.timeout <= 0 {
		return bad("--timeout: %v; it must be positive", a.timeout)
	}
	for _, app := range a.urls {
		u, err := url.Parse(app)
		switch {
		case err != nil: // its text has the URL, which may hold a password
			return bad("--app: one of the URLs cannot be read; write http://host:port/path, such as http://127.0.0.1:6060/debug/onefill")
		case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
			return bad("--app: %s is no http:// URL with a host", u.Redacted())
		}
	}
	return withoutSecret(cmd.Flags(), "app")
}

// question is the URL of an application with the filters.
func (a *apps) question(app string, more url.Values) string {
	u, err := url.Parse(app)
	if err != nil {
		return app // check has parsed it
	}
	q := u.Query()
	for name, value := range map[string]string{"cache": a.cache, "key": a.key} {
		if value != "" {
			q.Set(name, value)
		}
	}
	for name, values := range more {
		q[name] = values
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// appName is an application in the output: where it is, without a password.
func appName(app string) string {
	u, err := url.Parse(app)
	if err != nil {
		return "?"
	}
	return u.Host
}

// refusedError is an answer that asking again does not change.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

// ask sends a GET and checks that a Recorder has answered. It follows no redirection: a Recorder sends
// none, and whoever does is another.
func askApp(ctx context.Context, app, question, kind string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, question, nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the URL may hold a password
		}
		return nil, fmt.Errorf("%s: %w", appName(app), err)
	}
	if res.StatusCode == http.StatusOK && strings.HasPrefix(res.Header.Get("Content-Type"), kind) {
		return res, nil
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(res.Body, 300))
	says, status := plain(strings.TrimSpace(string(text))), plain(res.Status)
	switch {
	case res.StatusCode == http.StatusOK:
		says = fmt.Sprintf("what answers there is no watch.Recorder (Content-Type %q)", res.Header.Get("Content-Type"))
	case res.StatusCode == http.StatusNotFound:
		says = "there is no watch.Recorder at this path; where the application serves it is often /debug/onefill"
	case res.StatusCode >= 500:
		return nil, fmt.Errorf("%s: %s: %s", appName(app), status, says)
	}
	return nil, &refusedError{fmt.Sprintf("%s: %s: %s", appName(app), status, says)}
}

// snapshot asks an application what it knows.
func (a *apps) snapshot(ctx context.Context, app string, top int) (s watch.Snapshot, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	res, err := askApp(ctx, app, a.question(app, url.Values{"top": {strconv.Itoa(top)}}), "application/json")
	if err != nil {
		return s, err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(io.LimitReader(res.Body, 64<<20)).Decode(&s); err != nil {
		return s, fmt.Errorf("%s: %w", appName(app), err)
	}
	return s, nil
}

// silence is how long a stream may be silent: it says something every ten seconds.
const silence = 25 * time.Second

// stream follows one connection to an application, and tells of each group. It returns why
// the stream has ended, always.
func (a *apps) stream(ctx context.Context, app string, connected func(), tell func(watch.Group) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := func(patience time.Duration) *time.Timer {
		return time.AfterFunc(patience, func() { cancel(fmt.Errorf("%s: nothing was heard for %v", appName(app), patience)) })
	}
	quiet := silent(a.timeout)
	defer func() { quiet.Stop() }()
	res, err := askApp(ctx, app, a.question(app, url.Values{"follow": {"1"}}), "application/x-ndjson")
	if err != nil {
		return because(ctx, err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for first := true; lines.Scan(); first = false {
		quiet.Stop()
		quiet = silent(max(silence, a.timeout))
		var g watch.Group
		if err := json.Unmarshal(lines.Bytes(), &g); err != nil {
			return fmt.Errorf("%s: %w", appName(app), err)
		}
		if first {
			connected()
		}
		if g.Type == "beat" {
			continue
		}
		if err := tell(g); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return because(ctx, fmt.Errorf("%s: %w", appName(app), err))
	}
	return fmt.Errorf("%s: the stream has ended", appName(app))
}

// because is the cause of a context's end rather than what came of it.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// plain makes a text that others have made fit for a terminal: what cannot be printed, and could
// steer it, is escaped.
func plain(s string) string {
	var b strings.Builder
	for _, r := range s {
		if strconv.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// shorten makes a text fit a column.
func shorten(s string, most int) string {
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	return string(runes[:most-1]) + "…"
}
