package lab

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/onefill/onefill/internal/servers"
)

// Environment says what a run was made on.
type Environment struct {
	Store         string `json:"store"`
	StoreVersion  string `json:"store_version"`
	StoreHow      string `json:"store_how"` // "private", "given" or "embedded"
	Origin        string `json:"origin"`
	OriginVersion string `json:"origin_version"`
	OriginHow     string `json:"origin_how"`
	// Notes tell the reader what is not what it would be on real servers.
	Notes []string `json:"notes,omitempty"`
}

// How a server came to be used.
const (
	howPrivate  = "private"
	howGiven    = "given"
	howEmbedded = "embedded"
)

const (
	noteMemcached = "memcached tells nobody of changes: waiting processes poll with growing pauses, and in S1 to S6 local entries last 50 ms. Its clock counts whole seconds."
	noteMiniredis = "The store is the embedded miniredis, in this program: no pushes, so waiting processes poll, and no real server's timing. To kill it is to close it, to freeze it is to hold its commands."
	noteSQLite    = "The origin is the embedded SQLite, a file that the readers share: it counts the operations, but the wait is in the loader, since SQLite has no server to wait in."
)

// startStore finds or starts the store.
func (r *run) startStore(ctx context.Context) (err error) {
	env := &r.report.Environment
	start := r.startRedis
	if r.cfg.Store == StoreMemcached {
		start = r.startMemcached
	}
	var input *InputError
	switch env.StoreHow, err = start(ctx); {
	case errors.As(err, &input):
		return err
	case err != nil:
		return fmt.Errorf("start the store: %w", err)
	}
	env.Store, env.StoreVersion = r.store.name, r.store.version
	return nil
}

func (r *run) startRedis(ctx context.Context) (how string, err error) {
	switch {
	case r.cfg.Redis != "":
		connectCtx, cancel := context.WithTimeout(ctx, 2*connectTimeout)
		defer cancel()
		if r.store, err = attachRedis(connectCtx, strings.TrimSuffix(r.cfg.Redis, "/")); err != nil {
			err = badInput("redis", "cannot use the server at %s: %v", hostOf(r.cfg.Redis), err)
		}
		return howGiven, err
	case !r.cfg.Embedded:
		r.store, err = startPrivateRedis(ctx)
		if !errors.Is(err, servers.ErrNotInstalled) {
			return howPrivate, err
		}
		r.note("%v; --redis takes an existing server.", err)
	}
	r.note(noteMiniredis)
	r.store, err = startMiniredis()
	return howEmbedded, err
}

// startMemcached has nothing to fall back on: who asks for memcached wants to see it.
func (r *run) startMemcached(ctx context.Context) (how string, err error) {
	r.note(noteMemcached)
	if addr := strings.TrimSpace(r.cfg.Memcached); addr != "" {
		connectCtx, cancel := context.WithTimeout(ctx, 2*connectTimeout)
		defer cancel()
		if r.store, err = attachMemcached(connectCtx, addr); err != nil {
			err = badInput("memcached", "cannot use the server: %v", err) // it names the address
		}
		return howGiven, err
	}
	r.store, err = startPrivateMemcached(ctx)
	if errors.Is(err, servers.ErrNotInstalled) {
		err = fmt.Errorf("%w; --memcached takes an existing server", err)
	}
	return howPrivate, err
}

// startOrigin finds or starts the database and makes the lab's tables.
func (r *run) startOrigin(ctx context.Context) error {
	env := &r.report.Environment
	dsn := r.cfg.Postgres
	env.OriginHow = howGiven
	if dsn == "" && !r.cfg.Embedded {
		env.OriginHow = howPrivate
		srv, err := servers.Postgres(ctx, "", servers.PostgresOptions{
			Settings: []string{fmt.Sprintf("max_connections=%d", r.privateConnections())},
		})
		switch {
		case errors.Is(err, servers.ErrNotInstalled):
			r.note("%v; --postgres takes an existing server.", err)
		case err != nil:
			return fmt.Errorf("start the origin: %w", err)
		default:
			r.cleanup(func(context.Context) error { return srv.Stop() })
			dsn = srv.URL()
		}
	}
	if dsn == "" {
		return r.startSQLite(ctx)
	}
	return r.startPostgres(ctx, dsn)
}

func (r *run) startPostgres(ctx context.Context, dsn string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*connectTimeout)
	defer cancel()
	r.spec = originSpec{Kind: originPostgres, URL: dsn, Schema: "onefill_lab_" + r.id}
	pg, err := openPostgres(ctx, r.spec, parentConnections)
	if err != nil {
		return badInput("postgres", "cannot use the URL: %v", err) // pgx leaves the password out
	}
	r.cleanup(func(context.Context) error { pg.Close(); return nil })
	free, limit, err := pg.room(ctx)
	if err != nil {
		return badInput("postgres", "cannot use the server at %s: %s", pg.addr(), oneLine(err))
	}
	if needed := r.needed(r.connections); free < needed {
		return badInput("callers", "the modes without onefill open a connection for each caller: %d are needed, the server at %s has %d left of %d",
			needed, pg.addr(), free, limit)
	}
	r.freeConnections = free
	if err := pg.createSchema(ctx); err != nil {
		return badInput("postgres", "cannot make the schema %s on the server at %s: %v", r.spec.Schema, pg.addr(), err)
	}
	r.cleanup(pg.Drop)
	env := &r.report.Environment
	env.Origin = originPostgres
	env.OriginVersion, err = pg.version(ctx)
	r.origin = pg
	return err
}

func (r *run) startSQLite(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "onefill-lab-origin-")
	if err != nil {
		return err
	}
	r.cleanup(func(context.Context) error { return os.RemoveAll(dir) })
	r.spec = originSpec{Kind: originSQLite, Path: filepath.Join(dir, "origin.db")}
	db, err := openSQLite(r.spec)
	if err != nil {
		return err
	}
	r.cleanup(func(context.Context) error { db.Close(); return nil })
	if err := db.createSchema(ctx); err != nil {
		return fmt.Errorf("make the embedded origin: %w", err)
	}
	env := &r.report.Environment
	env.Origin, env.OriginHow = originSQLite, howEmbedded
	env.OriginVersion, err = db.version(ctx)
	r.note(noteSQLite)
	r.origin = db
	return err
}

// parentConnections is for the parent's own questions.
const parentConnections = 3

// connections is how many operations process p may have to run at once. Only
// onefill needs fewer than it has callers.
func (r *run) connections(p int) int {
	n := len(r.cfg.callersOf(p)) + 1
	if !slices.ContainsFunc(r.cfg.Modes, func(m string) bool { return m != ModeOnefill }) {
		return min(n, 4)
	}
	return n
}

// trafficConnections is the same where there are scenarios with traffic.
func (r *run) trafficConnections(p int) int {
	n := r.connections(p)
	wanted := slices.ContainsFunc(Scenarios, func(s *Scenario) bool { return s.traffic && slices.Contains(r.cfg.Scenarios, s.ID) })
	if wanted && p < r.trafficProcesses() {
		n = max(n, r.outageSize().connections+1)
	}
	return n
}

// privateConnections is how many a server of the lab's own has: enough for every scenario.
func (r *run) privateConnections() int {
	return min(max(r.needed(r.trafficConnections)+commitConnections+10, 100), 1000)
}

// held is what the readers and the parent come to hold in a run: a process keeps the
// connections that it has opened for the scenarios with traffic, if there was room for these.
func (r *run) held() int {
	if n := r.needed(r.trafficConnections); r.freeConnections == 0 || n <= r.freeConnections {
		return n
	}
	return r.needed(r.connections)
}

// needed is what the processes, and the parent, need.
func (r *run) needed(connections func(p int) int) int {
	n := parentConnections
	for p := range r.cfg.Processes {
		n += connections(p)
	}
	return n
}

func (r *run) note(format string, args ...any) {
	text := format
	if len(args) > 0 {
		text = fmt.Sprintf(format, args...)
	}
	r.report.Environment.Notes = append(r.report.Environment.Notes, text)
}

// hostOf is a URL without what is secret in it.
func hostOf(raw string) string {
	u, err := url.Parse(raw)
	switch {
	case err == nil && u.Host != "":
		return u.Host
	case err == nil && u.Scheme == "unix":
		return u.Scheme + ":" + u.Path
	}
	return "an address that is no URL" // and whose parts may be anything, a password too
}

// oneLine joins the lines of an error that has one for each try.
func oneLine(err error) string {
	lines := strings.Split(err.Error(), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(slices.Compact(lines), " ")
}
