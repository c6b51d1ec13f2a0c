package queue_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/onefill/onefill/queue"
)

// What is refused is refused for a reason that says what to do.
func TestCheckSaysWhatToDo(t *testing.T) {
	caps := queue.Caps{MaxDelay: 15 * time.Minute, MaxPayload: 100}
	for _, tt := range []struct {
		job  queue.Job
		want string
	}{
		{queue.Job{}, "invalid kind: it is empty"},
		{queue.Job{Kind: "two words"}, `invalid kind "two words": ' ' at byte 3; ASCII letters, digits and - _ . / : are allowed`},
		{queue.Job{Kind: strings.Repeat("k", 129)}, "invalid kind: it has 129 bytes, at most 128 are allowed"},
		{queue.Job{Kind: "k", Key: "a\xff"}, `job of kind "k": invalid: the key "a\xff" is not UTF-8; encode bytes, for example as hex`},
		{queue.Job{Kind: "k", Key: "a\x00"}, `job of kind "k": invalid: the key "a\x00" holds a NUL; encode bytes, for example as hex`},
		{queue.Job{Kind: "k", Key: strings.Repeat("k", 1025)}, `job of kind "k": invalid: the key has 1025 bytes, at most 1024 are allowed`},
		{queue.Job{Kind: "k", DedupeKey: "\x00"}, `job of kind "k": invalid: the dedupe key "\x00" holds a NUL; encode bytes, for example as hex`},
		{queue.Job{Kind: "k", Merge: true}, `job of kind "k": invalid: Merge needs a Key`},
		{queue.Job{Kind: "k", Delay: 20 * time.Minute}, `job of kind "k": invalid: a delay of 20m0s, this queue can delay by at most 15m0s`},
		{queue.Job{Kind: "k", Payload: make([]byte, 101)}, `job of kind "k": invalid: the payload has 101 bytes, this queue takes at most 100; store the data elsewhere and enqueue its name`},
		{queue.Job{Kind: "k", Payload: []byte("hello")}, `job of kind "k": invalid: the payload "hello" is not JSON: invalid character 'h' looking for beginning of value`},
		{queue.Job{Kind: "k", Payload: []byte("{\"a\":" + strings.Repeat("1", 50))}, `job of kind "k": invalid: the payload "{\"a\":11111111111111111111111111111111111"… is not JSON: unexpected end of JSON input`},
		{queue.Job{Kind: "k", Payload: []byte("\"\xff\"")}, `job of kind "k": invalid: the payload "\"\xff\"" is not UTF-8; encode bytes as base64 (a []byte in encoding/json)`},
		{queue.Job{Kind: "k", Payload: []byte(`"\u0000"`)}, `job of kind "k": invalid: the payload holds \u0000 in a string, which PostgreSQL cannot store; encode bytes as base64`},
		{queue.Job{Kind: "k", Payload: []byte(`"\ud83d"`)}, `job of kind "k": invalid: the payload holds half a surrogate pair in a string: \ud83d`},
	} {
		err := caps.Check(tt.job)
		if err == nil || err.Error() != tt.want || !errors.Is(err, queue.ErrInvalid) {
			t.Errorf("%v\n want %s", err, tt.want)
		}
	}
}

func TestPayloads(t *testing.T) {
	for p, ok := range map[string]bool{
		``: true, `null`: true, `{"a":[1,2.5e3,"b",true]}`: true, `"\\u0000"`: true, `"\\\\u0000"`: true, `"\\\u0000"`: false,
		`"\u0001\n\"\/"`: true, `"\ud83d\ude00"`: true, `"\uD83D\uDE00\u0000"`: false, `"\ude00\ud83d"`: false, `"\ud83d\n"`: false,
		`"\ud83dx"`: false, `"\ud83d\ud83d"`: false, `"\ufffd"`: true, `"😀"`: true, `{"\u0000":1}`: false, `{`: false, ` `: false,
		`1e1024`: true, `[-1.5E+1024]`: true, `1e1025`: false, `{"a":-1E-1025}`: false, `1e99999999999999999999`: false, `"1e9999"`: true, `{"1e9999":true}`: true,
		strings.Repeat("1", 1024): true, strings.Repeat("1", 1025): false, `0.` + strings.Repeat("1", 1023): false, `1 2`: false,
	} {
		if err := (queue.Caps{}).Check(queue.Job{Kind: "k", Payload: json.RawMessage(p)}); (err == nil) != ok {
			t.Errorf("payload %s: %v, want valid %t", p, err, ok)
		}
	}
}

// What passes can be read, has no NUL and no replacement for half a pair.
func FuzzPayload(f *testing.F) {
	for _, p := range []string{`"\u0000"`, `"\\\ud83d\ude00"`, `{"a":"\ud83d"}`, `"\\\\\\u0000"`, "\"\xff\"", `["a\/\u00e9"]`} {
		f.Add([]byte(p))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		if (queue.Caps{}).Check(queue.Job{Kind: "k", Payload: p}) != nil || len(p) == 0 {
			return
		}
		var v any
		d := json.NewDecoder(bytes.NewReader(p))
		d.UseNumber() // 1e700 is JSON and no float64
		if err := d.Decode(&v); err != nil {
			t.Fatalf("%q is taken for JSON: %v", p, err)
		}
		explicit := strings.Contains(string(p), "\uFFFD") || strings.Contains(strings.ToLower(string(p)), `\ufffd`)
		if text := fmt.Sprint(v); strings.Contains(text, "\x00") || strings.Contains(text, "\uFFFD") && !explicit {
			t.Errorf("%q is valid and reads as %q", p, text)
		}
	})
}

func TestErrorOf(t *testing.T) {
	whole := &queue.Error{Service: "memory", Addr: "here", Op: "ack", Err: errTest, Unavailable: true}
	some := queue.Errors{nil, queue.ErrLeaseLost, nil, queue.ErrUnknown}
	for _, tt := range []struct {
		err  error
		i    int
		want error
	}{{nil, 0, nil}, {whole, 0, whole}, {whole, 7, whole}, {some, 0, nil}, {some, 1, queue.ErrLeaseLost}, {some, 3, queue.ErrUnknown}} {
		if got := queue.ErrorOf(tt.err, tt.i); got != tt.want {
			t.Errorf("ErrorOf(%v, %d) = %v, want %v", tt.err, tt.i, got, tt.want)
		}
	}
	// An entry that was forgotten is not one that was done.
	if err := queue.ErrorOf(some, 4); err == nil {
		t.Error("an entry without a result is taken for done")
	}
	if queue.Errors(nil).Err() != nil || (queue.Errors{nil, nil}).Err() != nil || some.Err() == nil {
		t.Error("Err is nil if and only if all entries are")
	}
	if !errors.Is(some.Err(), queue.ErrUnknown) || errors.Is(some.Err(), queue.ErrUnavailable) || !errors.Is(queue.Errors{nil, whole}, queue.ErrUnavailable) {
		t.Error("errors.Is does not look at the entries")
	}
	if got := some.Error(); got != "2 of 4 entries failed; entry 1: the lease on the job is lost" {
		t.Errorf("%q", got)
	}
	if got := (queue.Errors{nil, queue.ErrUnknown}).Error(); got != "entry 1: no such job" {
		t.Errorf("%q", got)
	}
}

func TestError(t *testing.T) {
	e := &queue.Error{Service: "postgres", Addr: "127.0.0.1:5432/app", Op: "receive", Err: errTest}
	if got := e.Error(); got != "postgres at 127.0.0.1:5432/app: receive: no route to host" {
		t.Errorf("%q", got)
	}
	if errors.Is(e, queue.ErrUnavailable) || !errors.Is(e, errTest) {
		t.Error("a refusal is taken for an outage, or the cause is hidden")
	}
	if e.Unavailable = true; !errors.Is(e, queue.ErrUnavailable) {
		t.Error("an outage is not ErrUnavailable")
	}
}

func TestErrorText(t *testing.T) {
	long := strings.Repeat("é", queue.MaxErrorBytes)
	for _, text := range []string{"", "plain", "NUL \x00, bytes \xff\xfe", long, "x" + long} {
		got := queue.ErrorText(text)
		if len(got) > queue.MaxErrorBytes || !utf8.ValidString(got) || strings.Contains(got, "\x00") {
			t.Errorf("%.40q: %d bytes, %.40q", text, len(got), got)
		}
		if again := queue.ErrorText(got); again != got {
			t.Errorf("%.40q changes again, to %.40q", got, again)
		}
	}
	if got := queue.ErrorText("plain"); got != "plain" {
		t.Errorf("%q", got)
	}
}
