package queue

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	maxKindBytes   = 128
	maxKeyBytes    = 1024
	maxDedupeBytes = 256
	maxNumberBytes = 1024
	maxExponent    = 1024
)

// ValidKind says whether kind can be the kind of a job: 1 to 128 bytes of ASCII
// letters, digits and the characters - _ . / :
func ValidKind(kind string) error {
	if kind == "" {
		return fmt.Errorf("%w kind: it is empty", ErrInvalid)
	}
	if len(kind) > maxKindBytes {
		return fmt.Errorf("%w kind: it has %d bytes, at most %d are allowed", ErrInvalid, len(kind), maxKindBytes)
	}
	for i, r := range kind {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		if !letter && !strings.ContainsRune("-_./:", r) {
			return fmt.Errorf("%w kind %q: %q at byte %d; ASCII letters, digits and - _ . / : are allowed", ErrInvalid, kind, r, i)
		}
	}
	return nil
}

// Check says whether a queue with these limits can take the job, and if not, what to
// change. The error wraps [ErrInvalid].
func (c Caps) Check(j Job) error {
	if err := ValidKind(j.Kind); err != nil {
		return err
	}
	if err := validText("key", j.Key, maxKeyBytes); err != nil {
		return fmt.Errorf("job of kind %q: %w", j.Kind, err)
	}
	if err := validText("dedupe key", j.DedupeKey, maxDedupeBytes); err != nil {
		return fmt.Errorf("job of kind %q: %w", j.Kind, err)
	}
	if j.Merge && j.Key == "" {
		return fmt.Errorf("job of kind %q: %w: Merge needs a Key", j.Kind, ErrInvalid)
	}
	if c.MaxDelay > 0 && j.Delay > c.MaxDelay {
		return fmt.Errorf("job of kind %q: %w: a delay of %v, this queue can delay by at most %v", j.Kind, ErrInvalid, j.Delay, c.MaxDelay)
	}
	if c.MaxPayload > 0 && len(j.Payload) > c.MaxPayload {
		return fmt.Errorf("job of kind %q: %w: the payload has %d bytes, this queue takes at most %d; store the data elsewhere and enqueue its name",
			j.Kind, ErrInvalid, len(j.Payload), c.MaxPayload)
	}
	if err := validPayload(j.Payload); err != nil {
		return fmt.Errorf("job of kind %q: %w", j.Kind, err)
	}
	return nil
}

// CheckRequest says whether the queue can serve a Receive. The error wraps [ErrInvalid].
func (c Caps) CheckRequest(r Request) error {
	if r.Max < 1 {
		return fmt.Errorf("%w: Request.Max is %d, at least 1 is needed", ErrInvalid, r.Max)
	}
	return c.CheckLease(r.Lease)
}

// CheckLease says whether the queue can lease jobs for that long. The error wraps
// [ErrInvalid].
func (c Caps) CheckLease(lease time.Duration) error {
	if lease <= 0 {
		return fmt.Errorf("%w: a lease of %v, it must be positive", ErrInvalid, lease)
	}
	if c.MaxLease > 0 && lease > c.MaxLease {
		return fmt.Errorf("%w: a lease of %v, this queue leases for at most %v", ErrInvalid, lease, c.MaxLease)
	}
	return nil
}

func validText(what, text string, limit int) error {
	switch {
	case len(text) > limit:
		return fmt.Errorf("%w: the %s has %d bytes, at most %d are allowed", ErrInvalid, what, len(text), limit)
	case !utf8.ValidString(text):
		return fmt.Errorf("%w: the %s %q is not UTF-8; encode bytes, for example as hex", ErrInvalid, what, text)
	case strings.ContainsRune(text, 0):
		return fmt.Errorf("%w: the %s %q holds a NUL; encode bytes, for example as hex", ErrInvalid, what, text)
	}
	return nil
}

// validPayload refuses what some queue could not keep: PostgreSQL's jsonb takes neither
// NUL nor half a surrogate pair nor a number like 1e200000, and a JSON text is UTF-8 by
// its definition, though encoding/json lets other bytes pass.
func validPayload(p json.RawMessage) error {
	if len(p) == 0 {
		return nil
	}
	if !json.Valid(p) {
		var v any
		return fmt.Errorf("%w: the payload %s is not JSON: %w", ErrInvalid, excerpt(p), json.Unmarshal(p, &v))
	}
	if !utf8.Valid(p) {
		return fmt.Errorf("%w: the payload %s is not UTF-8; encode bytes as base64 (a []byte in encoding/json)", ErrInvalid, excerpt(p))
	}
	return validScalars(p)
}

// validScalars looks at the strings and numbers of a JSON text.
func validScalars(p []byte) error {
	for len(p) > 0 {
		n, err := 1, error(nil)
		switch c := p[0]; {
		case c == '"':
			n, err = validString(p)
		case c == '-' || '0' <= c && c <= '9':
			n, err = validNumber(p)
		}
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// validString checks the string at the start of p and returns its length.
func validString(p []byte) (int, error) {
	for i := 1; ; {
		if p[i] == '"' {
			return i + 1, nil
		}
		if p[i] != '\\' {
			i++
			continue
		}
		switch r := escaped(p[i:]); {
		case r < 0:
			i += 2 // \n and the like
		case r == 0:
			return 0, fmt.Errorf(`%w: the payload holds \u0000 in a string, which PostgreSQL cannot store; encode bytes as base64`, ErrInvalid)
		case !utf16.IsSurrogate(r):
			i += 6
		case utf16.DecodeRune(r, escaped(p[i+6:])) == utf8.RuneError:
			return 0, fmt.Errorf(`%w: the payload holds half a surrogate pair in a string: %s`, ErrInvalid, p[i:i+6])
		default:
			i += 12
		}
	}
}

// validNumber checks the number at the start of p and returns its length. PostgreSQL's
// numbers have limits, which are far beyond these.
func validNumber(p []byte) (int, error) {
	n := bytes.IndexFunc(p, func(r rune) bool { return !strings.ContainsRune("+-.0123456789eE", r) })
	if n < 0 {
		n = len(p)
	}
	number := p[:n]
	_, exponent, _ := strings.Cut(strings.ToLower(string(number)), "e")
	if e, err := strconv.Atoi(exponent); exponent != "" && (err != nil || max(e, -e) > maxExponent) || n > maxNumberBytes {
		return 0, fmt.Errorf("%w: the payload holds the number %s, which not every queue can store; at most %d characters and an exponent of at most %d are allowed, write it as a string",
			ErrInvalid, excerpt(number), maxNumberBytes, maxExponent)
	}
	return n, nil
}

// escaped is the code unit of the \u escape at the start of p, -1 if there is none.
func escaped(p []byte) rune {
	if len(p) < 6 || p[0] != '\\' || p[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(p[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}

func excerpt(p []byte) string {
	if len(p) > 40 {
		return fmt.Sprintf("%q…", p[:40])
	}
	return fmt.Sprintf("%q", p)
}
