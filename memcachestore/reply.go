package memcachestore

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
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

// readReply reads one reply and nothing beyond it. A value of more than limit bytes
// is a protocol error, and so is whatever else was not expected.
func readReply(r *bufio.Reader, limit int) (reply, error) {
	line, err := readLine(r)
	if err != nil {
		return reply{}, err
	}
	word, rest, _ := bytes.Cut(line, []byte(" "))
	switch string(word) {
	case "VA":
		return readValue(r, line, rest, limit)
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

func readValue(r *bufio.Reader, line, rest []byte, limit int) (reply, error) {
	length, flags, _ := bytes.Cut(rest, []byte(" "))
	size, ok := parseUint(length)
	if !ok || size > uint64(limit) {
		return reply{}, surprise(line)
	}
	rep, err := parseFlags(codeValue, line, flags) // before the line's bytes are overwritten
	if err != nil {
		return reply{}, err
	}
	if rep.value, err = readBody(r, int(size)); err != nil {
		return reply{}, err
	}
	return rep, nil
}

// readBody reads size bytes and the line end behind them. Memory is taken as the
// bytes arrive, not on the word of whoever claims to have them.
func readBody(r *bufio.Reader, size int) ([]byte, error) {
	const step = 1 << 20
	body := make([]byte, min(size, step))
	for at := 0; ; {
		n, err := io.ReadFull(r, body[at:])
		if err != nil {
			return nil, cutShort(err)
		}
		if at += n; at == size {
			break
		}
		body = append(body, make([]byte, min(size-at, max(step, at)))...)
	}
	var end [2]byte
	if _, err := io.ReadFull(r, end[:]); err != nil {
		return nil, cutShort(err)
	}
	if string(end[:]) != crlf {
		return nil, fmt.Errorf("%w: a value of %d bytes ends in %q", errProtocol, size, end)
	}
	return body, nil
}

// readLine returns a line without its end. It is valid until the next read.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull) || len(line) > maxLine:
		return nil, surprise(line)
	case err != nil:
		return nil, cutShort(err)
	case len(line) < 2 || line[len(line)-2] != '\r':
		return nil, surprise(line)
	}
	return line[:len(line)-2], nil
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

func parseUint(b []byte) (uint64, bool) {
	n, err := strconv.ParseUint(string(b), 10, 64)
	return n, err == nil
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
