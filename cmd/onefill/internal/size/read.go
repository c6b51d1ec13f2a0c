package size

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
)

// Format says how a line of a trace tells a key, and what its entry weighs. The
// zero value: the line is the key.
type Format struct {
	Column    int            // of the key, from 1; 0: the whole line
	Match     *regexp.Regexp // instead of Column: the first group, or all that matches
	Size      int            // column of the size in bytes, from 1; 0: entries are counted
	Overhead  int            // what an entry takes besides its key and its size; 0: the size says it all
	Separator byte           // of columns; 0: blanks, and quotes and brackets hold a column together
}

// longestLine bounds the memory for a file that is no text.
const longestLine = 1 << 20

// lines reads a trace.
type lines struct {
	name    string
	format  Format
	raw     counted
	line    int64
	leftOut int64 // lines without a key
}

// counted counts what is read of a file, compressed or not.
type counted struct {
	io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

// bad is the error for what is wrong with the line.
func (l *lines) bad(err error) error {
	return &InputError{fmt.Sprintf("%s:%d: %v", l.name, l.line, err)}
}

// each calls add for every request, until it returns false. progress is told the
// bytes read, now and then.
func (l *lines) each(ctx context.Context, r io.Reader, add func(hash uint64, size uint32) bool, progress func(read int64)) error {
	l.raw.Reader = r
	text, err := plain(&l.raw)
	if err != nil {
		return &InputError{fmt.Sprintf("%s: %v", l.name, err)}
	}
	scanner := bufio.NewScanner(text)
	scanner.Buffer(make([]byte, 1<<16), longestLine)
	for scanner.Scan() {
		l.line++
		if l.line&0x3fff == 0 {
			progress(l.raw.n)
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		key, size, err := l.format.parse(scanner.Bytes())
		if err != nil {
			return l.bad(err)
		}
		if len(key) == 0 {
			l.leftOut++
		} else if !add(hashKey(key), size) {
			return nil
		}
	}
	if err := scanner.Err(); err != nil {
		l.line++
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("the line is longer than %d bytes; a trace is text, a request a line", longestLine)
		}
		return l.bad(err)
	}
	return nil
}

// plain unpacks gzip, which it tells by its first bytes.
func plain(r io.Reader) (io.Reader, error) {
	buffered := bufio.NewReaderSize(r, 1<<16)
	if magic, err := buffered.Peek(2); err != nil || !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return buffered, nil // an error comes again when the lines are read
	}
	return gzip.NewReader(buffered)
}

// parse returns the key of a line, empty if it has none, and its entry's weight.
func (f *Format) parse(line []byte) (key []byte, size uint32, err error) {
	switch {
	case len(bytes.TrimSpace(line)) == 0:
		return nil, 0, nil
	case f.Match != nil:
		// Submatch indexes allocate less than submatches.
		m := f.Match.FindSubmatchIndex(line)
		if m == nil {
			return nil, 0, nil
		}
		if len(m) > 2 {
			m = m[2:]
		}
		if m[0] >= 0 {
			key = line[m[0]:m[1]]
		}
	case f.Column > 0:
		if key, err = column(line, f.Column, f.Separator); err != nil {
			return nil, 0, err
		}
	default:
		key = line
	}
	if f.Size == 0 || len(key) == 0 {
		return key, 0, nil
	}
	size, err = f.weight(line, len(key))
	return key, size, err
}

// weight is what the entry takes: at least 1, as what weighs nothing is never
// evicted. A size of "-" is how access logs write that there was no body.
func (f *Format) weight(line []byte, key int) (uint32, error) {
	field, err := column(line, f.Size, f.Separator)
	if err != nil {
		return 0, err
	}
	n := uint64(0)
	if text := string(bytes.TrimSpace(field)); text != "-" {
		if n, err = strconv.ParseUint(text, 10, 64); err != nil {
			return 0, fmt.Errorf("column %d: %q is no size in bytes", f.Size, shorten(text))
		}
	}
	if f.Overhead > 0 && n <= math.MaxUint32 {
		n += uint64(key) + uint64(f.Overhead)
	}
	if n > math.MaxUint32 {
		return 0, fmt.Errorf("column %d: an entry of %d bytes; the most is %d", f.Size, n, uint32(math.MaxUint32))
	}
	return uint32(max(n, 1)), nil
}

// shorten keeps a message readable whatever the file holds.
func shorten(text string) string {
	const most = 40
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}
