// Package exampletest runs an example as a user would: as a program, on real servers, asked over HTTP,
// and stopped by a signal.
package exampletest

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Build builds the example in the current directory.
func Build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "example")
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// Program is an example that runs.
type Program struct {
	// URLs are those that it listens on, by the server's name.
	URLs map[string]string

	cmd   *exec.Cmd
	mu    sync.Mutex // guards log
	log   strings.Builder
	ended chan error
}

var listening = regexp.MustCompile(`listening server=(\S+) url=(\S+)`)

// Start starts it, and waits until it listens on so many ports. It is killed at the end of
// the test if it was not stopped.
func Start(t *testing.T, path string, env []string, ports int, args ...string) *Program {
	t.Helper()
	p := &Program{URLs: make(map[string]string), cmd: exec.Command(path, args...), ended: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), env...)
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	go p.read(stderr, ports, ready)
	t.Cleanup(func() {
		if p.cmd.Process.Kill() == nil { // it still ran
			<-p.ended
		}
	})
	select {
	case <-ready:
	case err := <-p.ended:
		p.ended <- err
		t.Fatalf("it has ended: %v\n%s", err, p.Log())
	case <-time.After(time.Minute):
		t.Fatalf("it does not listen\n%s", p.Log())
	}
	return p
}

func (p *Program) read(stderr io.Reader, ports int, ready chan<- struct{}) {
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		p.mu.Lock()
		p.log.WriteString(lines.Text() + "\n")
		p.mu.Unlock()
		if m := listening.FindStringSubmatch(lines.Text()); m != nil {
			p.URLs[m[1]] = m[2] // before ready is closed
			if len(p.URLs) == ports {
				close(ready)
			}
		}
	}
	p.ended <- p.cmd.Wait()
}

// Log is what it has written so far.
func (p *Program) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// Signal sends SIGTERM.
func (p *Program) Signal(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

// Ended waits for the end, which must be a good one.
func (p *Program) Ended(t *testing.T) {
	t.Helper()
	select {
	case err := <-p.ended:
		p.ended <- err
		if log := p.Log(); err != nil || !strings.Contains(log, "msg=stopped") && !strings.Contains(log, " stopped\n") {
			t.Errorf("it has not stopped well: %v\n%s", err, log)
		}
	case <-time.After(30 * time.Second):
		t.Errorf("it does not stop\n%s", p.Log())
	}
}

// Stop is Signal and Ended.
func (p *Program) Stop(t *testing.T) {
	t.Helper()
	p.Signal(t)
	p.Ended(t)
}

// Do sends a request and returns status, body and header.
func Do(t *testing.T, method, url, body string, header ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, "", nil
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Errorf("%s %s: %v", method, url, err)
		return 0, "", nil
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Errorf("%s %s: %v", method, url, err)
	}
	return res.StatusCode, string(text), res.Header
}

// Get is a GET that must be 200.
func Get(t *testing.T, url string) string {
	t.Helper()
	status, text, _ := Do(t, http.MethodGet, url, "")
	if status != http.StatusOK {
		t.Errorf("GET %s: %d %s", url, status, text)
	}
	return text
}

// Herd sends n requests at once, to the URLs in turn, which must all answer the same, and returns that.
func Herd(t *testing.T, n int, urls ...string) string {
	t.Helper()
	var all sync.WaitGroup
	answers := make([]string, n)
	gate := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-gate
			answers[i] = Get(t, urls[i%len(urls)])
		})
	}
	close(gate)
	all.Wait()
	for i, a := range answers {
		if a != answers[0] {
			t.Errorf("answer %d is %q, answer 0 %q", i, a, answers[0])
		}
	}
	return answers[0]
}

// Until polls a condition.
func Until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for tick := time.NewTicker(10 * time.Millisecond); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited 20 s until %s", what)
		}
	}
}
