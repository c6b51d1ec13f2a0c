package integration

import (
	"bufio"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// tap stands between one process and a memcached and writes down what the process
// asks. It changes nothing.
type tap struct {
	addr   string
	server string

	mu    sync.Mutex // guards what follows
	asked map[string][]string
}

func newTap(t *testing.T, server string) *tap {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	p := &tap{addr: listener.Addr().String(), server: server, asked: map[string][]string{}}
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(from)
		}
	}()
	return p
}

// serve passes one connection on. Either end closes both.
func (p *tap) serve(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		io.Copy(from, to)
		from.Close()
	}()
	p.pass(bufio.NewReader(from), to)
}

// pass hands commands on as they come, and their data.
func (p *tap) pass(from *bufio.Reader, to io.Writer) {
	for {
		line, err := from.ReadString('\n')
		if err != nil {
			return
		}
		fields := strings.Fields(line)
		if len(fields) > 1 {
			p.mu.Lock()
			p.asked[fields[1]] = append(p.asked[fields[1]], fields[0])
			p.mu.Unlock()
		}
		if _, err := io.WriteString(to, line); err != nil {
			return
		}
		if len(fields) > 2 && fields[0] == "ms" {
			size, err := strconv.ParseInt(fields[2], 10, 64)
			if err != nil {
				return
			}
			if _, err := io.CopyN(to, from, size+2); err != nil {
				return
			}
		}
	}
}

// about is what the process has asked about an item, in order.
func (p *tap) about(item string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.asked[item]...)
}
