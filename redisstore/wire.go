package redisstore

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// A client of the store's own connects again by itself, unseen. So the store stands
// between the client and each of its connections: it asks the server who it is before
// it hands the connection over, and it looks at the roster before the first operation
// of ours is written. What is written by then goes to a server that every session knows
// of: no operation slips through to a server that has been replaced.
//
// What stays unseen is a proxy that moves an open connection to another server.

// wire is such a connection.
type wire struct {
	net.Conn
	addr     string
	id       identity
	store    *Store
	admitted atomic.Bool
}

// Write implements net.Conn. rueidis writes commands from one goroutine at a time, and
// a command of ours names one of our keys before anything else. What it writes on its
// own account (HELLO, ROLE of a primary that it may yet refuse, CLUSTER SLOTS, PING) is
// no operation.
func (w *wire) Write(p []byte) (int, error) {
	if !w.admitted.Load() && bytes.Contains(p, []byte(keyPrefix)) {
		if err := w.store.roster.admit(w.addr, w.id); err != nil {
			return 0, err // and rueidis closes the connection
		}
		w.admitted.Store(true)
	}
	return w.Conn.Write(p)
}

// Read implements net.Conn. A redirection says that the chart of the cluster is behind.
func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if v := w.store.survey.Load(); v != nil && bytes.Contains(p[:n], []byte("-MOVED ")) {
		v.hurry()
	}
	return n, err
}

func (w *wire) Close() error {
	w.store.wires.remove(w)
	return w.Conn.Close()
}

// wires are the open connections.
type wires struct {
	// mu guards open; nothing waits under it.
	mu   sync.Mutex
	open map[*wire]struct{}
}

func (ws *wires) add(w *wire) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.open == nil {
		ws.open = map[*wire]struct{}{}
	}
	ws.open[w] = struct{}{}
}

func (ws *wires) remove(w *wire) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.open, w)
}

// cut closes all connections that carry operations.
func (ws *wires) cut() {
	ws.mu.Lock()
	var open []*wire
	for w := range ws.open {
		if w.admitted.Load() {
			open = append(open, w)
		}
	}
	ws.mu.Unlock()
	for _, w := range open {
		w.Close()
	}
}

type dialFunc func(ctx context.Context, dst string, dialer *net.Dialer, config *tls.Config) (net.Conn, error)

// userDial is the dial function that an option asks for, or rueidis' own.
func userDial(option *rueidis.ClientOption) dialFunc {
	ctxDial, oldDial := option.DialCtxFn, option.DialFn
	return func(ctx context.Context, dst string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
		switch {
		case ctxDial != nil:
			return ctxDial(ctx, dst, dialer, config)
		case oldDial != nil:
			return oldDial(dst, dialer, config)
		case config != nil:
			return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, "tcp", dst)
		}
		return dialer.DialContext(ctx, "tcp", dst)
	}
}

// watchedDial makes wires. It also makes commands careful as soon as one of them dials:
// see guard.
func (s *Store) watchedDial(option *rueidis.ClientOption) dialFunc {
	dial, as := userDial(option), *option
	sentinels := markSentinels(option)
	return func(ctx context.Context, dst string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
		s.dialing(dst)
		conn, err := dial(ctx, dst, dialer, config)
		if err != nil || sentinels != nil && dialer.Resolver == sentinels {
			return conn, err
		}
		w := &wire{Conn: conn, addr: dst, store: s}
		if w.id, err = introduce(ctx, conn, &as, dialer.Timeout); err != nil {
			conn.Close()
			return nil, err
		}
		if option.DisableTCPNoDelay {
			disableNoDelay(w.Conn) // rueidis does not see through a wire
		}
		s.wires.add(w)
		return w, nil
	}
}

// markSentinels makes connections to sentinels known by their dialer: they carry no
// operation and have credentials of their own. The mark is a resolver that does what
// the one before does.
func markSentinels(option *rueidis.ClientOption) *net.Resolver {
	if option.Sentinel.MasterSet == "" {
		return nil
	}
	mark := &net.Resolver{}
	if r := option.Sentinel.Dialer.Resolver; r != nil {
		mark.PreferGo, mark.StrictErrors, mark.Dial = r.PreferGo, r.StrictErrors, r.Dial
	}
	option.Sentinel.Dialer.Resolver = mark
	return mark
}

func disableNoDelay(conn net.Conn) {
	if c, ok := conn.(*tls.Conn); ok {
		conn = c.NetConn()
	}
	if c, ok := conn.(*net.TCPConn); ok {
		_ = c.SetNoDelay(false) // an option that has no effect does no harm
	}
}

// introduce asks a server over a fresh connection who it is. A refusal (no rights, no
// such command, not logged in) is an identity that is not known.
func introduce(ctx context.Context, conn net.Conn, option *rueidis.ClientOption, timeout time.Duration) (identity, error) {
	if timeout <= 0 {
		timeout = setupTimeout
	}
	deadline := time.Now().Add(timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return identity{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	id, err := talk(conn, option)
	if !stop() {
		return identity{}, ctx.Err()
	}
	if err != nil {
		return identity{}, err
	}
	return id, conn.SetDeadline(time.Time{})
}

func talk(conn net.Conn, option *rueidis.ClientOption) (identity, error) {
	user, password, err := credentials(conn, option)
	if err != nil {
		return identity{}, nil // rueidis asks for them again, and fails
	}
	var out []byte
	switch {
	case user != "":
		out = appendCommand(out, "AUTH", user, password)
	case password != "":
		out = appendCommand(out, "AUTH", password)
	}
	login := len(out) > 0
	out = appendCommand(out, "INFO", "server")
	out = appendCommand(out, "INFO", "replication")
	if _, err := conn.Write(out); err != nil {
		return identity{}, err
	}
	in, refusal := bufio.NewReader(conn), "" // nothing comes behind the replies
	read := func() (string, error) {
		reply, ok, err := readReply(in)
		if err != nil && refusal != "" { // too many clients, for one
			return "", fmt.Errorf("the server says %q and ends the connection: %w", refusal, err)
		}
		if err == nil && !ok && refusal == "" {
			refusal = reply
		}
		return reply, err
	}
	if login {
		if _, err := read(); err != nil {
			return identity{}, err
		}
	}
	server, err := read()
	if err != nil {
		return identity{}, err
	}
	replication, err := read()
	if err != nil || refusal != "" {
		return identity{}, err
	}
	return readIdentity(server, replication), nil
}

func credentials(conn net.Conn, option *rueidis.ClientOption) (user, password string, err error) {
	if option.AuthCredentialsFn == nil {
		return option.Username, option.Password, nil
	}
	got, err := option.AuthCredentialsFn(rueidis.AuthCredentialsContext{Address: conn.RemoteAddr()})
	return got.Username, got.Password, err
}

func appendCommand(dst []byte, args ...string) []byte {
	dst = append(dst, '*')
	dst = strconv.AppendInt(dst, int64(len(args)), 10)
	for _, arg := range args {
		dst = append(dst, "\r\n$"...)
		dst = strconv.AppendInt(dst, int64(len(arg)), 10)
		dst = append(append(dst, "\r\n"...), arg...)
	}
	return append(dst, "\r\n"...)
}

// readReply reads a status, a refusal (not ok) or a string of RESP2, which is what a
// server speaks until it is asked for more.
func readReply(in *bufio.Reader) (reply string, ok bool, err error) {
	const longestReply = 1 << 20
	line, err := in.ReadString('\n')
	if err != nil {
		if line != "" && !strings.ContainsRune("+-$", rune(line[0])) {
			err = fmt.Errorf("%s: it begins with %.20q", notRedis, line)
		}
		return "", false, err
	}
	body := strings.TrimRight(line[1:], "\r\n")
	switch line[0] {
	case '+':
		return body, true, nil
	case '-':
		return body, false, nil
	case '$':
		if n, err := strconv.Atoi(body); err == nil && n >= 0 && n <= longestReply {
			data := make([]byte, n+2)
			_, err := io.ReadFull(in, data)
			return string(data[:n]), err == nil, err
		}
	}
	return "", false, fmt.Errorf("%s: it answers %.20q", notRedis, line)
}
