package measure

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/onefill/onefill/bench/peers"
)

// Limits measures what the machine allows at best: no cache can be faster.
func Limits(Sizes) *Measure {
	return &Measure{
		Name: "limits", Title: "What the machine allows", RowHead: "what",
		About:   "Bytes written and read over one connection on loopback, without a client library, and what goroutines cost.",
		Columns: []Column{{"us", "µs", 2}},
		Open:    openLimits,
	}
}

func openLimits(ctx context.Context, e *Env) ([]Row, error) {
	at, err := e.at(ctx)
	if err != nil {
		return nil, err
	}
	pg, err := e.Postgres(ctx)
	if err != nil {
		return nil, err
	}
	if err := plant(ctx, at); err != nil {
		return nil, err
	}
	set := fmt.Sprintf("$%d\r\n%s\r\n", peers.ValueSize, peers.Value())
	get := "*2\r\n$3\r\nGET\r\n$7\r\nlimit:k\r\n"
	mget := "*101\r\n$4\r\nMGET\r\n" + strings.Repeat("$7\r\nlimit:k\r\n", 100)
	fromMemcached := fmt.Sprintf("VALUE limit:k 0 %d\r\n%s\r\nEND\r\n", peers.ValueSize, peers.Value())
	row := func(name string, round func(context.Context) (float64, error)) Row {
		return Row{Name: name, Round: func(ctx context.Context) (Values, error) {
			us, err := round(ctx)
			return Values{"us": us}, err
		}}
	}
	exchange := func(addr, request string, reply, per int) func(context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) {
			return exchanges(ctx, addr, request, reply, per, e.Size.Slice)
		}
	}
	return []Row{
		row("an echo on loopback", func(ctx context.Context) (float64, error) { return echoes(ctx, e.Size.Slice) }),
		row("Redis GET, one at a time", exchange(at.Redis, get, len(set), 1)),
		row("Redis GET, 100 in a pipeline, each", exchange(at.Redis, strings.Repeat(get, 100), 100*len(set), 100)),
		row("Redis MGET of 100", exchange(at.Redis, mget, len("*100\r\n")+100*len(set), 1)),
		row("memcached get, one at a time", exchange(at.Memcached, "get limit:k\r\n", len(fromMemcached), 1)),
		row("Postgres select 1", func(ctx context.Context) (float64, error) { return selects(ctx, pg.URL(), e.Size.Slice) }),
		row("waking 10,000 goroutines", func(context.Context) (float64, error) { return wakes(10_000), nil }),
	}, nil
}

// plant stores what is read.
func plant(ctx context.Context, at peers.Servers) error {
	value := string(peers.Value())
	for addr, write := range map[string]string{
		at.Redis:     fmt.Sprintf("*3\r\n$3\r\nSET\r\n$7\r\nlimit:k\r\n$%d\r\n%s\r\n", len(value), value),
		at.Memcached: fmt.Sprintf("set limit:k 0 0 %d\r\n%s\r\n", len(value), value),
	} {
		c, err := dial(ctx, addr)
		if err != nil {
			return err
		}
		if _, err = io.WriteString(c, write); err == nil {
			_, err = bufio.NewReader(c).ReadString('\n')
		}
		c.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// exchanges sends requests and reads replies of a known length, for d. The result is in µs
// for each of the per operations of a request.
func exchanges(ctx context.Context, addr, request string, reply, per int, d time.Duration) (float64, error) {
	c, err := dial(ctx, addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	out, in := []byte(request), make([]byte, reply)
	r := bufio.NewReaderSize(c, 1<<16)
	p, err := throughput(1, 1, d, func(int, int) error {
		if _, err := c.Write(out); err != nil {
			return err
		}
		_, err := io.ReadFull(r, in)
		return err
	})
	return p.us() / float64(per), err
}

func echoes(ctx context.Context, d time.Duration) (float64, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	ended := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.Copy(c, c)
			c.Close()
		}
		ended <- err
	}()
	us, err := exchanges(ctx, l.Addr().String(), "x", 1, 1, d)
	l.Close()
	return us, errors.Join(err, <-ended)
}

func selects(ctx context.Context, url string, d time.Duration) (float64, error) {
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, err
	}
	defer c.Close(ctx)
	var one int
	p, err := throughput(1, 1, d, func(int, int) error { return c.QueryRow(ctx, "select 1").Scan(&one) })
	return p.us(), err
}

// wakes is how long the last of n goroutines waits that one close wakes.
func wakes(n int) float64 {
	gate := make(chan struct{})
	var ready, done sync.WaitGroup
	ready.Add(n)
	done.Add(n)
	for range n {
		go func() {
			ready.Done()
			<-gate
			done.Done()
		}()
	}
	ready.Wait()
	runtime.Gosched()
	start := time.Now()
	close(gate)
	done.Wait()
	return float64(time.Since(start).Nanoseconds()) / 1e3
}
