package memcachestore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A reply is read in the moment in which the connection fails: the request is finished by
// one of the two, with a whole reply or with the error. Forced by failing the connection in
// the middle of a stream of replies, many times; the race detector sees a double finish.
func TestReplyAndFailureFinishOnce(t *testing.T) {
	var replies, bad atomic.Int64
	for range 100 {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			defer nc.Close()
			br := bufio.NewReader(nc)
			for {
				line, err := br.ReadString('\n')
				if err != nil {
					return
				}
				f := strings.Fields(line)
				fmt.Fprintf(nc, "VA 1 c5 t-1 f3239169 %s\r\nx\r\n", f[len(f)-1])
			}
		}()
		nc, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c := newConn(nc, bufio.NewReader(nc), life{itemMax: 1 << 20, explicit: true}, 3*time.Second)
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
		ln.Close()
	}
	if n := bad.Load(); n != 0 {
		t.Errorf("%d replies were torn", n)
	}
}
