//go:build linux

package cli

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/onefill/onefill/watch"
	"golang.org/x/sys/unix"
)

// crowded is a report with more of everything than a terminal has lines.
func crowded() topReport {
	r := topReport{Apps: []topApp{{App: "a"}, {App: "b", Error: "b: " + strings.Repeat("connection refused ", 20)}}}
	for i := range 50 {
		cache, key := fmt.Sprintf("cache-%d", i), strings.Repeat("key", 30)
		r.Caches = append(r.Caches, topCache{CacheStat: watch.CacheStat{Cache: cache}})
		r.Hot = append(r.Hot, topHot{Cache: cache, Key: key})
		r.Slow = append(r.Slow, topSlow{Cache: cache, Key: key})
		r.Missed = append(r.Missed, topMissed{Cache: cache, Key: key})
		r.Extra = append(r.Extra, topMissed{Cache: cache, Key: key})
	}
	return r
}

// TestTopFits: however small the terminal is, the page has fewer lines than it, and none that is longer; all tables are
// there as soon as there is room for a row of each.
func TestTopFits(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {200, 60}, {100, 30}, {40, 10}, {10, 2}, {1, 1}} {
		p := topPage{terminal: true, colorful: true, size: func() (int, int) { return size[0], size[1] }}
		text := p.fitted(crowded())
		if n := strings.Count(text, "\n"); n >= max(size[1], 2) || n < size[1]-6 && size[1] >= 30 {
			t.Errorf("%v: %d lines", size, n)
		}
		for line := range strings.Lines(text) {
			if n := utf8.RuneCountInString(strings.NewReplacer("\n", "", red, "", noColor, "").Replace(line)); n > size[0] {
				t.Errorf("%v: a line of %d", size, n)
			}
		}
		if tables := strings.Count(text, "\n\n"); size[1] >= 30 && tables != 5 {
			t.Errorf("%v: %d tables\n%s", size, tables, text)
		}
		if size[1] >= 30 && !strings.Contains(text, " more caches\n") {
			t.Errorf("%v: it does not say that there are more caches\n%s", size, text)
		}
	}
	p := topPage{terminal: true, size: func() (int, int) { return 0, 0 }} // it is not known
	if n := strings.Count(p.fitted(crowded()), "\n"); n < 250 {
		t.Errorf("nobody knows how large the terminal is: %d lines", n)
	}
}

// TestTopFollowsTheTerminal: the page fits a terminal, and is drawn again when that has another size, long before
// the next page is due.
func TestTopFollowsTheTerminal(t *testing.T) {
	a := startApp(t)
	for i := range 10 {
		a.herd(t, 1, fmt.Sprint("k", i))
	}
	screen, tty := terminal(t)
	resize := func(columns, lines uint16) {
		must(t, unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: lines, Col: columns}))
	}
	resize(100, 60)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var stderr strings.Builder
	code := make(chan int, 1)
	go func() {
		code <- Run(ctx, []string{"top", "--app", a.server.URL, "--interval", "1h"}, strings.NewReader(""), tty, &stderr)
	}()
	large := readPage(t, screen)
	resize(60, 20)
	must(t, syscall.Kill(os.Getpid(), syscall.SIGWINCH)) // as the kernel does for a controlling terminal
	small := readPage(t, screen)
	if strings.Count(large, "\n") < 30 || !strings.Contains(large, "k9") {
		t.Errorf("in 60 lines:\n%q", large)
	}
	if n := strings.Count(small, "\n"); n < 10 || n >= 20 {
		t.Errorf("in 20 lines: %d\n%q", n, small)
	}
	stop()
	if c := <-code; c != exitInterrupted {
		t.Errorf("exit code %d, %s", c, stderr.String())
	}
}

// readPage reads to the end of a page.
func readPage(t *testing.T, screen *os.File) string {
	t.Helper()
	must(t, screen.SetReadDeadline(time.Now().Add(20*time.Second)))
	var page strings.Builder
	buffer := make([]byte, 4096)
	for !strings.HasSuffix(page.String(), wrapOn) {
		n, err := screen.Read(buffer)
		if err != nil {
			t.Fatalf("%v after %q", err, page.String())
		}
		page.Write(buffer[:n])
	}
	return page.String()
}
