//go:build unix

package live_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

// chromium is a headless browser, driven through two pipes in the DevTools protocol: messages of
// JSON that end with a zero byte.
type chromium struct {
	t   *testing.T
	in  *os.File
	out *os.File

	mu      sync.Mutex // guards what follows, and writes to in
	last    int
	pending map[int]chan message
	errors  []string // what the console says of errors
	gone    error
}

type message struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// startChromium skips the test, and says so, where there is no browser.
func startChromium(t *testing.T) *chromium {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "headless-shell"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		t.Skip("SKIPPED: no Chromium on PATH, so the page is not played in a browser; make deps installs it where apt-get may")
	}
	read, in, err := os.Pipe()
	must(t, err)
	out, write, err := os.Pipe()
	must(t, err)
	dir := t.TempDir()
	cmd := exec.Command(program, "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-extensions", "--disable-sync",
		"--no-first-run", "--no-proxy-server", "--hide-scrollbars", "--user-data-dir="+dir, "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_CACHE_HOME="+dir)
	cmd.ExtraFiles = []*os.File{read, write}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(t, cmd.Start())
	read.Close()
	write.Close()
	c := &chromium{t: t, in: in, out: out, pending: make(map[int]chan message)}
	ended := make(chan struct{})
	go func() { c.listen(); close(ended) }()
	t.Cleanup(func() {
		c.call("", "Browser.close", nil, nil)
		exited := make(chan struct{})
		go func() { cmd.Wait(); close(exited) }()
		select {
		case <-exited:
		case <-time.After(5 * time.Second):
		}
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // its own group: what of it is left
		<-exited
		in.Close()
		out.Close()
		<-ended
	})
	return c
}

func (c *chromium) listen() {
	r := bufio.NewReaderSize(c.out, 1<<16)
	for {
		data, err := r.ReadBytes(0)
		if err != nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.gone = err
			for _, reply := range c.pending {
				close(reply)
			}
			c.pending = nil
			return
		}
		var m message
		if json.Unmarshal(data[:len(data)-1], &m) != nil {
			continue
		}
		c.mu.Lock()
		if reply := c.pending[m.ID]; reply != nil {
			delete(c.pending, m.ID)
			reply <- m
		}
		c.note(m)
		c.mu.Unlock()
	}
}

// note keeps what a developer would see in red. c.mu is held.
func (c *chromium) note(m message) {
	var p struct {
		Type  string `json:"type"`
		Entry struct {
			Level, Text, URL string
		} `json:"entry"`
	}
	switch m.Method {
	case "Runtime.exceptionThrown":
		c.errors = append(c.errors, string(m.Params))
	case "Runtime.consoleAPICalled":
		if json.Unmarshal(m.Params, &p) == nil && (p.Type == "error" || p.Type == "warning" || p.Type == "assert") {
			c.errors = append(c.errors, string(m.Params))
		}
	case "Log.entryAdded":
		if json.Unmarshal(m.Params, &p) == nil && p.Entry.Level == "error" {
			c.errors = append(c.errors, p.Entry.Text+" "+p.Entry.URL)
		}
	}
}

func (c *chromium) call(session, method string, params, result any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	if params == nil {
		raw = []byte("{}")
	}
	reply := make(chan message, 1)
	c.mu.Lock()
	if c.gone != nil {
		c.mu.Unlock()
		return fmt.Errorf("the browser has ended: %w", c.gone)
	}
	c.last++
	data, err := json.Marshal(message{ID: c.last, SessionID: session, Method: method, Params: raw})
	if err == nil {
		c.pending[c.last] = reply
		_, err = c.in.Write(append(data, 0))
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case m, ok := <-reply:
		switch {
		case !ok:
			return errors.New("the browser ended")
		case m.Error != nil:
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		case result != nil:
			return json.Unmarshal(m.Result, result)
		}
		return nil
	case <-time.After(30 * time.Second):
		return fmt.Errorf("%s: no answer in 30 seconds", method)
	}
}

// tab is a page in the browser.
type tab struct {
	*chromium
	t       *testing.T
	session string
}

// open opens a tab of a size; features are media features, as in prefers-color-scheme.
func (c *chromium) open(t *testing.T, url string, width, height int, features map[string]string) *tab {
	t.Helper()
	var target struct{ TargetID string }
	must(t, c.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, &target))
	var attached struct{ SessionID string }
	must(t, c.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached))
	p := &tab{chromium: c, t: t, session: attached.SessionID}
	t.Cleanup(func() { c.call("", "Target.closeTarget", map[string]any{"targetId": target.TargetID}, nil) })
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		p.do(domain+".enable", nil)
	}
	list := []map[string]string{} // not null
	for name, value := range features {
		list = append(list, map[string]string{"name": name, "value": value})
	}
	p.do("Emulation.setEmulatedMedia", map[string]any{"features": list})
	p.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false})
	p.do("Page.navigate", map[string]any{"url": url})
	p.until(`document.readyState === "complete" && document.querySelector("h1") !== null`)
	return p
}

func (p *tab) do(method string, params any) {
	p.t.Helper()
	must(p.t, p.call(p.session, method, params, nil))
}

// eval returns the value of an expression.
func (p *tab) eval(expression string, into any) {
	p.t.Helper()
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *json.RawMessage
	}
	must(p.t, p.call(p.session, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &got))
	if got.ExceptionDetails != nil {
		p.t.Fatalf("%s: %s", expression, *got.ExceptionDetails)
	}
	if into != nil && len(got.Result.Value) > 0 {
		must(p.t, json.Unmarshal(got.Result.Value, into))
	}
}

// until polls a condition in the page.
func (p *tab) until(condition string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 40*time.Second)
	defer cancel()
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for {
		var holds bool
		p.eval("Boolean("+condition+")", &holds)
		if holds {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			var text string
			p.eval("document.body.innerText", &text)
			p.t.Fatalf("never was: %s\nthe page says:\n%s", condition, text)
		}
	}
}

// click clicks with the mouse on the middle of an element, which must be what lies there.
func (p *tab) click(selector string) {
	p.t.Helper()
	p.until(fmt.Sprintf("document.querySelector(%q) && !document.querySelector(%q).disabled", selector, selector))
	var at struct{ X, Y float64 }
	p.eval(fmt.Sprintf(`(() => { const e = document.querySelector(%q); e.scrollIntoView({block: "center", behavior: "instant"});
		const r = e.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2;
		if (!e.contains(document.elementFromPoint(x, y))) throw new Error("something lies over " + %q); return {x, y}; })()`, selector, selector), &at)
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		p.do("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": at.X, "y": at.Y, "button": "left", "clickCount": 1})
	}
}

// keys are those that the tests press.
var keys = map[string]struct {
	code int
	text string
}{
	"Tab": {9, ""}, "Enter": {13, "\r"}, " ": {32, " "}, "ArrowRight": {39, ""}, "ArrowLeft": {37, ""}, "Home": {36, ""}, "End": {35, ""},
}

func (p *tab) press(key string) {
	p.t.Helper()
	k := keys[key]
	code := key
	if key == " " {
		code = "Space"
	}
	down := map[string]any{"type": "keyDown", "key": key, "code": code, "windowsVirtualKeyCode": k.code}
	if k.text != "" {
		down["text"] = k.text
	}
	p.do("Input.dispatchKeyEvent", down)
	p.do("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": code, "windowsVirtualKeyCode": k.code})
}

// picture writes what the tab shows, or the whole page, as PNG.
func (p *tab) picture(path string, whole bool) {
	p.t.Helper()
	var shot struct{ Data string }
	must(p.t, p.call(p.session, "Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": whole}, &shot))
	data, err := base64.StdEncoding.DecodeString(shot.Data)
	must(p.t, err)
	must(p.t, os.WriteFile(path, data, 0o644))
}

// clean fails the test if the console said anything in red.
func (p *tab) clean() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.errors {
		p.t.Errorf("in the console: %s", e)
	}
	p.errors = nil
}
