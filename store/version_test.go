package store_test

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/onefill/onefill/store"
)

func TestVersionsSortByTime(t *testing.T) {
	at := []time.Time{time.UnixMilli(0), time.UnixMilli(1), time.UnixMilli(255), time.UnixMilli(256), epoch,
		epoch.Add(time.Millisecond), epoch.Add(time.Hour), epoch.AddDate(100, 0, 0), time.UnixMilli(1<<48 - 1)}
	for i := range at {
		v := store.NewVersion(at[i])
		if got, want := v.Time().UnixMilli(), at[i].UnixMilli(); got != want {
			t.Errorf("the version of %d ms is dated %d ms", want, got)
		}
		for j := range i {
			// Whatever the random part is: try it a few times.
			for range 20 {
				earlier, later := store.NewVersion(at[j]), store.NewVersion(at[i])
				if bytes.Compare(earlier[:], later[:]) >= 0 || earlier.String() >= later.String() {
					t.Errorf("%v of %v is not before %v of %v", earlier, at[j], later, at[i])
				}
			}
		}
	}
}

func TestVersionBefore1970(t *testing.T) {
	for _, at := range []time.Time{{}, time.UnixMilli(-1), time.UnixMilli(math.MinInt64)} {
		if got := store.NewVersion(at).Time(); got.UnixMilli() != 0 {
			t.Errorf("the version of %v is dated %v, want 1970", at, got)
		}
	}
}

func TestVersionsAndTokensDiffer(t *testing.T) {
	versions, tokens := map[store.Version]bool{}, map[store.Token]bool{}
	for range 10_000 {
		versions[store.NewVersion(epoch)] = true
		tokens[store.NewToken()] = true
	}
	if len(versions) != 10_000 || len(tokens) != 10_000 {
		t.Errorf("10,000 each: %d different versions, %d different tokens", len(versions), len(tokens))
	}
}

func TestIDStrings(t *testing.T) {
	if got := (store.Version{0: 0xab, 15: 0x01}).String(); got != "ab000000000000000000000000000001" {
		t.Errorf("Version.String = %q", got)
	}
	if got := (store.Token{0: 0xab, 15: 0x01}).String(); got != "ab000000000000000000000000000001" {
		t.Errorf("Token.String = %q", got)
	}
}
