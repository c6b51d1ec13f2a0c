package onefill

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/bus"
	"github.com/onefill/onefill/store"
)

func TestBusMessageRoundTrip(t *testing.T) {
	for _, m := range []busMessage{
		{sender: store.NewToken()},
		{sender: store.NewToken(), before: math.MaxUint64, ago: time.Hour, content: true, everything: true},
		{sender: store.NewToken(), before: 1, ago: 3 * time.Microsecond, content: true,
			names: []debtor{{"k", false}, {"k", true}, {"", true}, {strings.Repeat("\x00OFB", 1000), false}}},
	} {
		if got, err := readBusMessage(m.encode()); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("got %+v, %v; want %+v", got, err, m)
		}
	}
	// What has passed is rounded down, so that nothing seems to be from before it was.
	m := busMessage{ago: 1999 * time.Nanosecond}
	if got, _ := readBusMessage(m.encode()); got.ago != time.Microsecond {
		t.Errorf("1999 ns became %v", got.ago)
	}
}

func TestBusMessageErrors(t *testing.T) {
	m := busMessage{sender: store.NewToken(), before: 7, content: true, names: []debtor{{"some key", false}}}
	whole := m.encode()
	for n := range whole {
		want := errUnknownMessage
		if n < len(busMagic) {
			want = errForeignMessage
		}
		// A message that ends between two names is a whole one; this one has only one name.
		if n == len(whole)-len("some key")-2 {
			continue
		}
		if _, err := readBusMessage(whole[:n]); !errors.Is(err, want) {
			t.Errorf("the first %d bytes of %d: %v, want %v", n, len(whole), err, want)
		}
	}
	for what, at := range map[string]int{"version": 3, "flags": 3 + 1 + 16 + 1 + 1, "kind": 3 + 1 + 16 + 1 + 1 + 1} {
		broken := append([]byte(nil), whole...)
		broken[at] = 99
		if _, err := readBusMessage(broken); !errors.Is(err, errUnknownMessage) {
			t.Errorf("a %s that does not exist: %v", what, err)
		}
	}
}

// Whatever comes over a bus is read without a panic, and what is understood means what it
// says.
func FuzzBusMessage(f *testing.F) {
	m := busMessage{sender: store.NewToken(), before: 300, ago: time.Second, content: true, names: []debtor{{"key", false}, {"tag", true}}}
	f.Add(m.encode())
	f.Add([]byte("OFB\x01"))
	f.Add([]byte("PUBLISH"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := readBusMessage(data)
		if err != nil {
			return
		}
		if again, err := readBusMessage(m.encode()); err != nil || !reflect.DeepEqual(again, m) {
			t.Errorf("%q was read as %+v, and that as %+v, %v", data, m, again, err)
		}
	})
}

// A message fits into a bus, whatever keys are in it, and all names go out.
func TestOutboxFillsMessages(t *testing.T) {
	o := outbox{pending: map[debtor]struct{}{}, ready: make(chan struct{}, 1), full: make(chan struct{}, 1)}
	want := map[debtor]bool{}
	for i := range 200 {
		name := strings.Repeat("k", i*3) + string(rune('a'+i%26))
		if i%50 == 0 {
			name = strings.Repeat("k", MaxKeyBytes-i)
		}
		want[debtor{name, i%3 == 0}] = true
		o.add([]string{name, name}, i%3 == 0)
	}
	messages := 0
	for m, ok := o.take(); ok; m, ok = o.take() {
		messages++
		if n := len(m.encode()); n > bus.MaxMessageBytes {
			t.Errorf("a message has %d bytes, at most %d are allowed", n, bus.MaxMessageBytes)
		}
		for _, who := range m.names {
			if !want[who] {
				t.Errorf("%.20q went out twice, or was never written", who.name)
			}
			delete(want, who)
		}
	}
	if len(want) != 0 || o.size != 0 || messages > 15 {
		t.Errorf("%d names were left out, %d bytes are left, %d messages", len(want), o.size, messages)
	}
}

// Who is heard for the first time with a number that says that there were others before:
// they were missed if they were sent since this process listens.
func TestEars(t *testing.T) {
	now := int64(0)
	e := ears{now: func() int64 { return now }, senders: map[busSender]heardOf{}}
	hear := func(what string, sender byte, before uint64, ago time.Duration, content, missed bool) {
		t.Helper()
		if got := e.hear(&busMessage{sender: busSender{sender}, before: before, ago: ago, content: content}); got != missed {
			t.Errorf("%s: missed %t, want %t", what, got, missed)
		}
	}
	now = int64(time.Hour)
	e.restart()
	now += int64(time.Minute)
	hear("the first one ever", 1, 0, 0, true, false)
	hear("the next", 1, 1, time.Second, true, false)
	hear("again", 1, 1, time.Second, true, false)
	hear("a heartbeat after it", 1, 2, time.Second, false, false)
	hear("a heartbeat after one more", 1, 3, time.Second, false, true)
	hear("one that was missed comes late", 1, 2, time.Second, true, false)
	hear("the one after it", 1, 3, time.Second, true, false)
	hear("one too early", 1, 5, time.Second, true, true)
	hear("unknown, silent since before", 2, 4, time.Minute+time.Millisecond, true, false)
	hear("unknown, heard by others lately", 3, 4, time.Minute, true, true)
	hear("the same one's next", 3, 5, time.Second, true, false)
	hear("unknown, a heartbeat for a message from before", 4, 1, 2*time.Minute, false, false)
	hear("unknown, a heartbeat for a missed message", 5, 1, time.Second, false, true)
	hear("from a past that no clock had", 6, 1, math.MaxInt64, true, false)
	e.restart()
	now += int64(time.Second)
	hear("after a new connection: sent while there was none", 1, 9, 2*time.Second, true, false)
	hear("after a new connection: sent since", 2, 9, time.Second-time.Millisecond, true, true)

	for i := range maxSenders + 10 {
		now++
		e.hear(&busMessage{sender: busSender{9, byte(i), byte(i >> 8)}, content: true})
	}
	if n := len(e.senders); n != maxSenders {
		t.Errorf("%d senders are remembered, at most %d are allowed", n, maxSenders)
	}
	hear("a sender that was forgotten", 1, 10, time.Millisecond, true, true)
}
