package sqsqueue

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/onefill/onefill/queue"
)

// FuzzDecode: any body is a job that the contract allows, and what was encoded comes back.
func FuzzDecode(f *testing.F) {
	for _, body := range []string{"", "hello", `{"onefill":1,"kind":"k","key":"a","version":"7","delay":3,"dedupe":"d","payload":{"a":[1,"\u00e9"]}}`,
		`{"onefill":1,"kind":"k","dedupe":"d","dead":{"id":"x","attempts":3},"payload":null}`, "\xff", `{"onefill":1,"kind":"k","dedupe":"d","payload":"\u0000"}`} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		j, e := decode(body, "message-id")
		if err := (queue.Caps{}).Check(j); err != nil && utf8.ValidString(body) && !strings.ContainsRune(body, 0) {
			t.Fatalf("decoded %+v: %v", j, err)
		}
		if j.Kind == RawKind && e.Onefill == 0 {
			if again, err := encodeAgain(&j); err != nil || body != "" && utf8.ValidString(body) && again != body {
				t.Fatalf("a replay of %q sends %q, %v", body, again, err)
			}
			return
		}
		again, err := encode(&j, nil)
		if err != nil {
			t.Fatalf("encoding %+v: %v", j, err)
		}
		if strings.ContainsFunc(again, func(r rune) bool { return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r >= 0xFFFE }) {
			t.Fatalf("%q has characters that SQS refuses", again)
		}
		k, _ := decode(again, "message-id")
		if k.Kind != j.Kind || k.Key != j.Key || k.Version != j.Version || k.DedupeKey != j.DedupeKey || !sameJSON(k.Payload, j.Payload) {
			t.Fatalf("%+v came back as %+v", j, k)
		}
	})
}

func sameJSON(a, b json.RawMessage) bool {
	text := func(m json.RawMessage) string {
		var v any
		if len(m) == 0 {
			m = json.RawMessage("null")
		}
		d := json.NewDecoder(strings.NewReader(string(m)))
		d.UseNumber()
		if err := d.Decode(&v); err != nil {
			return err.Error()
		}
		out, _ := json.Marshal(v)
		return string(out)
	}
	return text(a) == text(b)
}

// FuzzParse: no token that is not ours is taken for one.
func FuzzParse(f *testing.F) {
	q := &Queue{mark: "sqs1-01234567"}
	good := q.token(parts{"id", "han.dle", 3, "body.with.dots"})
	f.Add(string(good))
	f.Add("sqs1-01234567.id.3.900.h")
	f.Add("sqs1-01234567.id.3.-1.h")
	f.Fuzz(func(t *testing.T, text string) {
		p, ok := q.parse(queue.Token(text))
		if !ok {
			return
		}
		if back, ok := q.parse(q.token(p)); !ok || back != p || p.handle == "" || p.id == "" {
			t.Fatalf("token %q is %+v, and again %+v", text, p, back)
		}
	})
}

func TestTokensOfOthers(t *testing.T) {
	q, other := &Queue{mark: "sqs1-01234567"}, &Queue{mark: "sqs1-89abcdef"}
	p := parts{"id", "h.a", 3, `{"a":"b.c"}`}
	if got, ok := q.parse(q.token(p)); !ok || got != p {
		t.Errorf("%+v came back as %+v", p, got)
	}
	if _, ok := other.parse(q.token(p)); ok {
		t.Error("a token of another queue was taken")
	}
}
