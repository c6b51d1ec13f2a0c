package invalidation_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/invalidation"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/memqueue"
	"github.com/onefill/onefill/store/memstore"
)

type (
	place struct {
		Country string
		ID      int64
	}
	uuid   [2]byte
	shade  string
	hidden struct{ id int }
)

func (u uuid) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%02x-%02x", u[0], u[1]), nil }
func (u *uuid) UnmarshalText(text []byte) error {
	_, err := fmt.Sscanf(string(text), "%02x-%02x", &u[0], &u[1])
	return err
}

// Whatever the type of the keys, the job takes the writer's key away, and no other: the
// strings that stores trip over, extremes of integers, structs, types that encode themselves.
func TestKeysOfAllTypes(t *testing.T) {
	long := strings.Repeat("k", 3000)
	keys(t, []string{" ", "\r\n", "a", "A", "a:l", "{a}", `"`, `\`, "<&>", "null", "42", "-1", "\x00", "a\x00b", "\xff\xfe", "\xff", "\ufffd",
		"schlüssel", "🗝", "\u2028", "sha256:", "sha256:ab", long, long + "k", fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(long))), "bytes:AA=="})
	keys(t, []shade{"red", "\xff"})
	keys(t, []int64{0, 1, -1, math.MinInt64, math.MaxInt64, 1<<53 + 1})
	keys(t, []uint64{0, math.MaxUint64})
	keys(t, []uint8{0, 255})
	keys(t, []place{{"ch", 1}, {"ch", 2}, {"", 1}})
	keys(t, []uuid{{1, 2}, {255, 0}})
	keys(t, []bool{true, false})
}

func keys[K comparable](t *testing.T, all []K) {
	t.Helper()
	names := make(map[string]K)
	for _, key := range all {
		js := must(invalidation.Invalidate("things", key))
		if other, twice := names[js[0].Key]; twice {
			t.Errorf("%#v and %#v are both called %q: merging them would lose one", key, other, js[0].Key)
		}
		names[js[0].Key] = key
	}
	t.Run(fmt.Sprintf("%T", all[0]), func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			q := memqueue.New()
			c := must(onefill.New(onefill.Options[K, string]{Name: "things", Store: memstore.New(), TTL: 24 * time.Hour, Logger: quiet,
				Key: func(k K) string { return fmt.Sprintf("%#v", k) }}))
			defer c.Close()
			w := startWorker(t, q, invalidation.For("things", c))
			defer w.Stop(bg)
			for _, key := range all {
				for _, k := range all {
					if err := c.Set(bg, k, "v"); err != nil {
						t.Fatal(err)
					}
				}
				enqueue(t, q, must(invalidation.Invalidate("things", key))...)
				after(time.Second)
				for _, k := range all {
					if _, found, err := c.Peek(bg, k); err != nil || found != (k != key) {
						t.Errorf("the job of %#v has left %#v: %t, %v", key, k, found, err)
					}
				}
			}
			wantDone(t, q)
		})
	})
}

// The spelling of a database's JSON, and what writers in other languages make: numbers as
// strings and the other way round. A number that is none of the key's is an error.
func TestForeignPayloads(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		numbers := must(onefill.New(onefill.Options[int32, string]{Name: "n", Store: memstore.New(), Logger: quiet}))
		texts := must(onefill.New(onefill.Options[string, string]{Name: "s", Store: memstore.New(), Logger: quiet}))
		defer numbers.Close()
		defer texts.Close()
		numbers.Set(bg, 42, "v")
		numbers.Set(bg, -7, "v")
		texts.Set(bg, "42", "v")
		texts.Set(bg, "a\x00", "v")
		for _, p := range []string{`{ "key" : "42", "cache" : "n" }`, `{"cache":"n","key":-7,"later":1}`, `{"cache":"s","key":42}`, `{"cache":"s","bytes":"YQA="}`} {
			enqueue(t, q, queue.Job{Kind: invalidation.KindInvalidate, Payload: json.RawMessage(p)})
		}
		bad := map[string]string{
			`{"cache":"n","key":"042"}`:      "no int32",
			`{"cache":"n","key":4.5}`:        "no int32",
			`{"cache":"n","key":2147483648}`: "no int32",
			`{"cache":"n","bytes":"AA=="}`:   "keys are of type int32",
			`{"cache":"s","key":4.5}`:        "no string",
			`{"cache":"s","key":true}`:       "no string",
		}
		for p := range bad {
			enqueue(t, q, queue.Job{Kind: invalidation.KindInvalidate, Payload: json.RawMessage(p)})
		}
		places := must(onefill.New(onefill.Options[place, string]{Name: "p", Store: memstore.New(), Logger: quiet, Key: func(p place) string { return fmt.Sprint(p) }}))
		defer places.Close()
		bad[`{"cache":"p","key":{"Country":"ch","ID":7,"Town":"x"}}`] = "unknown field" // of the release before: it is none of these
		enqueue(t, q, queue.Job{Kind: invalidation.KindInvalidate, Payload: json.RawMessage(`{"cache":"p","key":{"Country":"ch","ID":7,"Town":"x"}}`)})
		startWorker(t, q, invalidation.For("n", numbers), invalidation.For("s", texts), invalidation.For("p", places))
		after(time.Second)
		for _, k := range []int32{42, -7} {
			if _, found, _ := numbers.Peek(bg, k); found {
				t.Errorf("%d is still there", k)
			}
		}
		for _, k := range []string{"42", "a\x00"} {
			if _, found, _ := texts.Peek(bg, k); found {
				t.Errorf("%q is still there", k)
			}
		}
		left := q.Jobs()
		if len(left) != len(bad) {
			t.Errorf("%d jobs are left, want %d", len(left), len(bad))
		}
		for _, j := range left {
			if want := bad[string(j.Payload)]; want == "" || !strings.Contains(j.LastError, want) {
				t.Errorf("%s failed with %q, want %q", j.Payload, j.LastError, want)
			}
		}
	})
}

// A key that would not come back from JSON is refused where the writer hears of it.
func TestKeysThatJSONCannotHold(t *testing.T) {
	refused(t, hidden{7})
	refused(t, math.NaN())
	refused(t, math.Inf(1))
	refused(t, new(int))
	refused(t, [1]string{"\xff"})
	refused(t, any(place{"ch", 1}))
	refused(t, make(chan int))
	if _, err := invalidation.Invalidate("a b", 1); err == nil || !strings.Contains(err.Error(), "name of the cache") {
		t.Errorf("a bad name: %v", err)
	}
	if js, err := invalidation.Invalidate[string]("users"); err != nil || len(js) != 0 {
		t.Errorf("no keys: %v, %v", js, err)
	}
}

func refused[K comparable](t *testing.T, key K) {
	t.Helper()
	if js, err := invalidation.Invalidate("things", key); err == nil {
		t.Errorf("%#v became %s", key, js[0].Payload)
	}
}
