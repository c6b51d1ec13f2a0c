package sqsqueue

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/onefill/onefill/queue"
)

// RawKind is the kind of the jobs that messages become which are not this package's: the
// payload is the message's body as a JSON string. Without a handler for it they end with
// the dead letters like every job of an unknown kind; a replay sends the body as it was.
const RawKind = "sqs:raw"

// envelope is the body of a message: the whole job, so that it survives what SQS does
// with messages by itself, such as a redrive.
type envelope struct {
	Onefill int    `json:"onefill"` // the format, always 1
	Kind    string `json:"kind"`
	Key     string `json:"key,omitempty"`
	Version string `json:"version,omitempty"` // decimal; as a number other readers would round it
	// Delay in seconds: it tells the lag, and on FIFO queues the receiver sees to it.
	Delay   int64           `json:"delay,omitempty"`
	Dedupe  string          `json:"dedupe"`
	Dead    *death          `json:"dead,omitempty"` // in the dead-letter queue
	Payload json.RawMessage `json:"payload"`
}

// death is what a dead letter adds to its job.
type death struct {
	ID       string `json:"id"` // of the job
	Attempts int    `json:"attempts"`
	Reason   string `json:"reason,omitempty"`
	Error    string `json:"error,omitempty"`
}

const format = 1

// What an envelope adds to a payload at most: a Kind of 128 bytes, a Key of 1,024 and a
// DedupeKey of 256, of which JSON may write each as six, and the rest. The second number
// is for the reason and the error of a dead letter, which are cut to what there is.
const (
	envelopeBytes = 8 << 10
	deathBytes    = 4 << 10
)

// encode is a job as the body of a message.
func encode(j *queue.Job, dead *death) (string, error) {
	e := envelope{Onefill: format, Kind: j.Kind, Key: j.Key, Delay: int64(seconds(j.Delay).Seconds()), Dedupe: j.DedupeKey, Dead: dead, Payload: j.Payload}
	if j.Version != 0 {
		e.Version = strconv.FormatUint(j.Version, 10)
	}
	if len(e.Payload) == 0 {
		e.Payload = json.RawMessage("null")
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false) // it would make the payload larger
	if err := enc.Encode(e); err != nil {
		return "", fmt.Errorf("%w: %w", queue.ErrInvalid, err)
	}
	return sendable(strings.TrimSuffix(buf.String(), "\n")), nil
}

// sendable escapes what JSON texts may hold raw and SQS, or a stand-in for it, refuses:
// U+FFFE, U+FFFF and what is beyond. They can only be in strings.
func sendable(text string) string {
	beyond := func(r rune) bool { return r >= 0xFFFE }
	if !strings.ContainsFunc(text, beyond) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch high, low := utf16.EncodeRune(r); {
		case !beyond(r):
			b.WriteRune(r)
		case r <= 0xFFFF:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		}
	}
	return b.String()
}

// decode is the job in a message's body. What is not one of this package's is RawKind.
func decode(body, messageID string) (queue.Job, *envelope) {
	var e envelope
	if json.Unmarshal([]byte(body), &e) == nil && e.Onefill == format {
		version, err := strconv.ParseUint(e.Version, 10, 64)
		j := queue.Job{Kind: e.Kind, Key: e.Key, Payload: e.Payload, Version: version, DedupeKey: e.Dedupe}
		if (err == nil || e.Version == "") && j.DedupeKey != "" && e.Delay >= 0 && (queue.Caps{}).Check(j) == nil {
			return j, &e
		}
	}
	payload, err := json.Marshal(body)
	if err != nil {
		payload = json.RawMessage("null") // not reached: every string can be marshalled
	}
	return queue.Job{Kind: RawKind, Payload: payload, DedupeKey: messageID}, &envelope{}
}

// encodeAgain is a dead letter's job as a body: what is RawKind gets its own body back.
func encodeAgain(j *queue.Job) (string, error) {
	if j.Kind == RawKind {
		var body string
		if json.Unmarshal(j.Payload, &body) == nil && body != "" {
			return body, nil
		}
	}
	return encode(j, nil)
}

// encodeDead is a dead letter of at most limit bytes: its texts are cut to fit.
func encodeDead(j *queue.Job, d death, limit int) (string, error) {
	for {
		body, err := encode(j, &d)
		if err != nil || len(body) <= limit || d.Reason == "" && d.Error == "" {
			return body, err
		}
		d.Reason, d.Error = half(d.Reason), half(d.Error)
	}
}

func half(text string) string { return strings.ToValidUTF8(text[:len(text)/2], "") }

// messageGroup is the group of a job on a FIFO queue: its key where SQS takes it as a
// group's name, else a name made of it; a job without a key is alone in its group.
func messageGroup(key string) string {
	if key == "" {
		return "-" + rand.Text()
	}
	if len(key) <= 128 && !strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return key
	}
	return "sha256:" + digest(key)
}

// digest names a list of strings.
func digest(parts ...string) string {
	var all []byte
	for _, p := range parts {
		all = fmt.Appendf(all, "%d:%s", len(p), p)
	}
	sum := sha256.Sum256(all)
	return hex.EncodeToString(sum[:])
}
