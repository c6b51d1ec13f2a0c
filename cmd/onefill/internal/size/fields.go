package size

import (
	"bytes"
	"errors"
	"fmt"
)

var (
	errOpenQuote   = errors.New("a quote is not closed")
	errOpenBracket = errors.New("a bracket is not closed")
	errAfterQuote  = errors.New("there is text after a closing quote")
)

// column returns the n-th column of a line, from 1. separator is 0 for blanks.
func column(line []byte, n int, separator byte) ([]byte, error) {
	next := nextBlank
	if separator != 0 {
		next = func(rest []byte) (field, after []byte, err error) { return nextSeparated(rest, separator) }
	} else {
		line = bytes.TrimLeft(line, " \t")
	}
	for i := 1; line != nil; i++ {
		field, after, err := next(line)
		if err != nil {
			return nil, fmt.Errorf("column %d: %w", i, err)
		}
		if i == n {
			return field, nil
		}
		if after == nil {
			return nil, fmt.Errorf("there is no column %d; the line has %d", n, i)
		}
		line = after
	}
	return nil, fmt.Errorf("there is no column %d; the line is empty", n)
}

// nextBlank takes a column that ends with blanks, as access logs have them:
// quotes and brackets hold one together, a backslash escapes a quote. rest begins
// with the column; after is nil when there is no more.
func nextBlank(rest []byte) (field, after []byte, err error) {
	if len(rest) == 0 {
		return rest, nil, nil
	}
	end, skip := bytes.IndexAny(rest, " \t"), 0
	switch rest[0] {
	case '"':
		if end, skip = closingQuote(rest), 1; end < 0 {
			return nil, nil, errOpenQuote
		}
	case '[':
		if end, skip = bytes.IndexByte(rest, ']'), 1; end < 0 {
			return nil, nil, errOpenBracket
		}
	}
	if end < 0 {
		return rest, nil, nil
	}
	if after = bytes.TrimLeft(rest[end+skip:], " \t"); len(after) == 0 {
		after = nil
	}
	return rest[skip:end], after, nil
}

func closingQuote(field []byte) int {
	for i := 1; i < len(field); i++ {
		switch field[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}

// nextSeparated takes a column that ends with a separator, as CSV has them: a
// column in quotes may hold the separator, and a quote as two.
func nextSeparated(rest []byte, separator byte) (field, after []byte, err error) {
	if len(rest) == 0 || rest[0] != '"' {
		field, after, found := bytes.Cut(rest, []byte{separator})
		if !found {
			return field, nil, nil
		}
		return field, after, nil
	}
	for i := 1; i < len(rest); i++ {
		if rest[i] != '"' {
			continue
		}
		if i+1 < len(rest) && rest[i+1] == '"' {
			i++
			continue
		}
		field = bytes.ReplaceAll(rest[1:i], []byte(`""`), []byte(`"`))
		switch {
		case i+1 == len(rest):
			return field, nil, nil
		case rest[i+1] != separator:
			return nil, nil, errAfterQuote
		}
		return field, rest[i+2:], nil
	}
	return nil, nil, errOpenQuote
}
