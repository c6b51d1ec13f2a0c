package memcachestore

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"sync/atomic"
)

// code is the kind of a reply.
type code uint8

const (
	codeValue   code = iota + 1 // VA: an item with its value
	codeDone                    // HD: done, or an item whose value was not asked for
	codeMiss                    // EN
	codeMissing                 // NF: no item to compare with
	codeExists                  // EX: the item has another CAS
	codeNot                     // NS: not stored, as one is there already
	codeNoop                    // MN
	codeRefused                 // SERVER_ERROR: asked and refused
)

// reply is one answer of a server to mg, ms, md or mn.
type reply struct {
	code    code
	opaque  uint32
	value   []byte // VA; nobody else has it
	cas     uint64
	left    int64 // seconds until the item expires, forever if never
	flags   uint32
	won     bool   // W
	already bool   // Z: somebody else has been told W
	message string // of SERVER_ERROR
}

// errProtocol is wrapped by everything that a memcached would not have said. The
// connection is given up then: nobody knows where the next reply begins.
var errProtocol = errors.New("unexpected answer")

// The longest line of a reply is far shorter: a key of 250 bytes and its flags.
const maxLine = 2048

// parser reads one reply after the other. It can be interrupted: after an error that is not
// the connection's end, next goes on where it has stopped.
type parser struct {
	br    *bufio.Reader
	limit int           // bytes of a value
	large *atomic.Int32 // counts the large values that are on their way; may be nil

	// What is known of the value that is being read: its line, how long it is, and its first
	// bytes. Nil between two values.
	head reply
	size int
	body []byte
	at   int
}

// readReply reads one reply and nothing beyond it. A value of more than limit bytes
// is a protocol error, and so is whatever else was not expected.
func readReply(r *bufio.Reader, limit int) (reply, error) {
	p := parser{br: r, limit: limit}
	return p.next()
}

func (p *parser) next() (reply, error) {
	if p.body == nil {
		line, err := peekLine(p.br)
		if err != nil {
			return reply{}, err
		}
		rep, err := p.parse(line[:len(line)-len(crlf)])
		if err != nil {
			return reply{}, err
		}
		_, _ = p.br.Discard(len(line)) // which is buffered
		if rep.code != codeValue {
			return rep, nil
		}
		const step = 1 << 20
		p.head, p.body, p.at = rep, make([]byte, min(p.size, step)), 0
		p.count(1)
	}
	if err := p.readBody(); err != nil {
		return reply{}, err
	}
	rep := p.head
	rep.value = p.body
	p.head, p.body = reply{}, nil
	p.count(-1)
	return rep, nil
}

// count counts the value that is being read, if it is large.
func (p *parser) count(n int32) {
	if p.large != nil && p.size >= largeValue {
		p.large.Add(n)
	}
}

// parse reads a line, without its end.
func (p *parser) parse(line []byte) (reply, error) {
	word, rest, _ := bytes.Cut(line, []byte(" "))
	switch string(word) {
	case "VA":
		length, flags, _ := bytes.Cut(rest, []byte(" "))
		size, ok := parseUint(length)
		if !ok || size > uint64(p.limit) {
			return reply{}, surprise(line)
		}
		p.size = int(size)
		return parseFlags(codeValue, line, flags)
	case "HD":
		return parseFlags(codeDone, line, rest)
	case "EN":
		return parseFlags(codeMiss, line, rest)
	case "NF":
		return parseFlags(codeMissing, line, rest)
	case "EX":
		return parseFlags(codeExists, line, rest)
	case "NS":
		return parseFlags(codeNot, line, rest)
	case "MN":
		return reply{code: codeNoop}, nil
	case "SERVER_ERROR":
		return reply{code: codeRefused, message: string(rest)}, nil
	}
	return reply{}, surprise(line)
}

// readBody reads a value and the line end behind it. Memory is taken as the bytes arrive,
// not on the word of whoever claims to have them.
func (p *parser) readBody() error {
	for p.at < p.size {
		if p.at == len(p.body) {
			p.body = append(p.body, make([]byte, min(p.size-p.at, p.at))...)
		}
		n, err := p.br.Read(p.body[p.at:])
		p.at += n
		if err != nil {
			return cutShort(err)
		}
	}
	end, err := p.br.Peek(len(crlf))
	switch {
	case err != nil:
		return cutShort(err)
	case string(end) != crlf:
		return fmt.Errorf("%w: a value of %d bytes ends in %q", errProtocol, p.size, end)
	}
	_, _ = p.br.Discard(len(crlf)) // which is buffered
	return nil
}

// readLine returns a line without its end. It is valid until the next read.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := peekLine(r)
	if err != nil {
		return nil, err
	}
	_, _ = r.Discard(len(line)) // which is buffered
	return line[:len(line)-len(crlf)], nil
}

// peekLine returns the next line with its end, which stays unread. It is valid until the
// next read.
func peekLine(r *bufio.Reader) ([]byte, error) {
	for {
		line, _ := r.Peek(r.Buffered())
		if end := bytes.IndexByte(line, '\n'); end >= 0 {
			if line = line[:end+1]; end > maxLine || !bytes.HasSuffix(line, []byte(crlf)) {
				return nil, surprise(line)
			}
			return line, nil
		}
		if len(line) > maxLine {
			return nil, surprise(line)
		}
		if _, err := r.Peek(len(line) + 1); err != nil {
			return nil, cutShort(err)
		}
	}
}

// parseFlags reads the flags that come back with a reply. Those that were not asked
// for are a surprise.
func parseFlags(c code, line, rest []byte) (reply, error) {
	rep := reply{code: c}
	for len(rest) > 0 {
		var flag []byte
		flag, rest, _ = bytes.Cut(rest, []byte(" "))
		if len(flag) == 0 {
			continue // 1.6 ends some lines in a space
		}
		ok := true
		switch number := flag[1:]; flag[0] {
		case 'O':
			rep.opaque, ok = parseUint32(number)
		case 'c':
			rep.cas, ok = parseUint(number)
		case 't':
			rep.left, ok = parseLeft(number)
		case 'f':
			rep.flags, ok = parseUint32(number)
		case 'W':
			rep.won = true
		case 'Z':
			rep.already = true
		case 'X': // marked stale by somebody who is not us
		default:
			ok = false
		}
		if !ok {
			return reply{}, surprise(line)
		}
	}
	return rep, nil
}

func parseLeft(number []byte) (int64, bool) {
	if string(number) == "-1" {
		return forever, true
	}
	n, ok := parseUint32(number)
	return int64(n), ok
}

func parseUint32(b []byte) (uint32, bool) {
	n, ok := parseUint(b)
	return uint32(n), ok && n <= math.MaxUint32
}

func parseUint(b []byte) (n uint64, ok bool) {
	for _, c := range b {
		high, low := bits.Mul64(n, 10)
		var carry uint64
		if n, carry = bits.Add64(low, uint64(c-'0'), 0); c < '0' || c > '9' || high+carry > 0 {
			return 0, false
		}
	}
	return n, len(b) > 0
}

// surprise is the error for a line that no memcached would have sent.
func surprise(line []byte) error {
	const most = 80
	line = bytes.TrimRight(line, crlf)
	if len(line) > most {
		return fmt.Errorf("%w: %q…", errProtocol, line[:most])
	}
	return fmt.Errorf("%w: %q", errProtocol, line)
}

// cutShort makes the end of a connection in mid-reply look like what it is.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
