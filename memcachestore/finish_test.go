package memcachestore

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// A reply is read in the moment in which the connection fails: the request is finished by
// one of the two, with a whole reply or with the error. Forced by failing the connection in
// the middle of a stream of replies, many times; the race detector sees a double finish.
func TestReplyAndFailureFinishOnce(t *testing.T) {
	var replies, bad atomic.Int64
	for range 100 {
		c := answers(t, func(_ int, opaque string) string { return "VA 1 c5 t-1 f3239169 " + opaque + "\r\nx\r\n" })
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for {
					r, err := c.do(context.Background(), func(b []byte, o uint32) []byte { return appendGet(b, "k", 0, 0, o) }, nil)
					if err != nil {
						return
					}
					replies.Add(1)
					if r.code != codeValue || string(r.value) != "x" {
						bad.Add(1)
					}
				}
			})
		}
		for seen := replies.Load(); replies.Load() < seen+10; {
			runtime.Gosched()
		}
		c.fail(errors.New("stalled"))
		wg.Wait()
	}
	if n := bad.Load(); n != 0 {
		t.Errorf("%d replies were torn", n)
	}
}
