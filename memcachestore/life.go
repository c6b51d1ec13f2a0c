package memcachestore

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// life is what is learned about a server when a connection is made, before it is
// used.
type life struct {
	version string
	// explicit: the server takes CAS values of our own choice (E). They are random,
	// so one that is compared is never somebody else's.
	explicit bool
	itemMax  int   // item_size_max, bytes
	clock    int64 // the server's, Unix seconds, at the moment met
	met      time.Time
	// name of this life of the server. Servers count their CAS values from 1 each
	// time they start, so a lease from before a restart may look like somebody else's
	// from after it. The name is an item that whoever comes first puts there: a restart
	// loses it. Two connections that have read one name speak to one life. Empty where
	// the server had no room for it.
	name string
}

// Before 1.6.13, md compared CAS values wrongly; since 1.6.27 there is E.
var (
	oldestVersion   = [3]int{1, 6, 13}
	explicitVersion = [3]int{1, 6, 27}
)

// serverTime is the server's clock now.
func (l *life) serverTime() int64 { return l.clock + int64(time.Since(l.met)/time.Second) }

// same says whether a CAS value from one life means anything in another one.
func (l *life) same(other *life) bool {
	return l.explicit && other.explicit || l.name != "" && l.name == other.name
}

// meet asks a new connection who is there, within the connection's deadline.
func meet(nc net.Conn, br *bufio.Reader) (life, error) {
	l := life{met: time.Now()}
	if err := l.askVersion(nc, br); err != nil {
		return life{}, err
	}
	if _, err := io.WriteString(nc, "stats\r\nstats settings\r\n"); err != nil {
		return life{}, err
	}
	general, err := readStats(br)
	if err != nil {
		return life{}, err
	}
	settings, err := readStats(br)
	if err != nil {
		return life{}, err
	}
	if l.clock, err = strconv.ParseInt(general["time"], 10, 64); err != nil {
		return life{}, unfit{fmt.Errorf("the server's stats have no time: %q", general["time"])}
	}
	if l.itemMax, err = strconv.Atoi(settings["item_size_max"]); err != nil || l.itemMax <= 0 {
		return life{}, unfit{fmt.Errorf("the server's settings have no item_size_max: %q", settings["item_size_max"])}
	}
	if settings["cas_enabled"] == "no" {
		return life{}, unfit{errors.New("the server runs without compare-and-swap (-C), which leases need")}
	}
	return l, l.askName(nc, br)
}

func (l *life) askVersion(nc net.Conn, br *bufio.Reader) error {
	if _, err := io.WriteString(nc, "version"+crlf); err != nil {
		return err
	}
	line, err := br.ReadSlice('\n')
	version, ok := bytes.CutPrefix(bytes.TrimRight(line, crlf), []byte("VERSION "))
	switch {
	case ok && err == nil:
		l.version = string(version)
	case len(line) > 0:
		return unfit{fmt.Errorf("this is no memcached, or it wants to be spoken to otherwise (TLS, a password): asked for its version it says %q", line[:min(len(line), 80)])}
	case errors.Is(err, io.EOF):
		return fmt.Errorf("the server has closed the connection when asked for its version; is it a memcached? %w", err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the server accepts connections but does not say its version; is it a memcached? %w", err)
	default:
		return err
	}
	v, ok := parseVersion(l.version)
	switch {
	case !ok:
		return unfit{fmt.Errorf("the server calls its version %q; %s or newer is needed", l.version, dotted(oldestVersion))}
	case before(v, oldestVersion):
		return unfit{fmt.Errorf("the server is memcached %s; %s or newer is needed", l.version, dotted(oldestVersion))}
	}
	l.explicit = !before(v, explicitVersion)
	return nil
}

// askName reads the name of the server's life after an attempt to give it one.
func (l *life) askName(nc net.Conn, br *bufio.Reader) error {
	b := appendSet(nil, bootKey, write{ttl: "0", data: []byte(rand.Text())}, 1)
	if _, err := nc.Write(appendGet(b, bootKey, 0, 0, 2)); err != nil {
		return err
	}
	for opaque := range uint32(2) {
		r, err := readReply(br, l.itemMax)
		switch {
		case err != nil:
			return err
		case r.code == codeRefused:
		case r.opaque != opaque+1:
			return fmt.Errorf("%w: it belongs to another request", errProtocol)
		case r.code == codeValue:
			l.name = string(r.value)
		}
	}
	return nil
}

// readStats reads "STAT name value" up to END.
func readStats(br *bufio.Reader) (map[string]string, error) {
	const most = 1000
	stats := map[string]string{}
	for range most {
		line, err := readLine(br)
		if err != nil {
			return nil, err
		}
		if string(line) == "END" {
			return stats, nil
		}
		rest, ok := strings.CutPrefix(string(line), "STAT ")
		if !ok {
			return nil, unfit{surprise(line)}
		}
		name, value, _ := strings.Cut(rest, " ")
		stats[name] = value
	}
	return nil, fmt.Errorf("%w: stats without an end", errProtocol)
}

// parseVersion reads "1.6.18" and what forks make of it: "1.6.17_x", "1.6.22-rc1".
func parseVersion(s string) (v [3]int, ok bool) {
	parts := strings.SplitN(s, ".", 3)
	if len(parts) != 3 {
		return v, false
	}
	if end := strings.IndexFunc(parts[2], func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		parts[2] = parts[2][:end]
	}
	for i, part := range parts {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 {
			return v, false
		}
		v[i] = n
	}
	return v, true
}

func before(v, than [3]int) bool {
	for i := range v {
		if v[i] != than[i] {
			return v[i] < than[i]
		}
	}
	return false
}

func dotted(v [3]int) string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }
