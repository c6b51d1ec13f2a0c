//go:build linux

package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/onefill/onefill/store"
)

// terminal is a pseudo-terminal: what is typed at it, and what a program reads.
func terminal(t *testing.T) (keyboard, tty *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	t.Cleanup(func() { keyboard.Close() })
	var unlock, number int32
	for _, call := range []struct {
		request uintptr
		arg     *int32
	}{{syscall.TIOCSPTLCK, &unlock}, {syscall.TIOCGPTN, &number}} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, keyboard.Fd(), call.request, uintptr(unsafe.Pointer(call.arg))); errno != 0 {
			t.Fatal(errno)
		}
	}
	if tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return keyboard, tty
}

// What cron gives is a character device, and no terminal.
func TestDevNullIsNoTerminal(t *testing.T) {
	null, err := os.Open(os.DevNull)
	must(t, err)
	defer null.Close()
	if _, tty := terminal(t); isTerminal(null) || !isTerminal(tty) {
		t.Errorf("%s: %v, a terminal: %v", os.DevNull, isTerminal(null), isTerminal(tty))
	}
}

// On a terminal it asks: n leaves the lease, y breaks the one that was shown.
func TestLeaseBreakAsks(t *testing.T) {
	forStores(t, func(t *testing.T, open func() store.Store, name string, args []string) {
		s, err := open().Attach(t.Context(), store.Config{Name: name, Owner: "web-3:4711"})
		must(t, err)
		defer s.Close()
		a, err := s.Acquire(t.Context(), "42", store.Request{Token: store.NewToken(), TTL: time.Minute})
		must(t, err)
		if renewed, err := a.Lease.Renew(t.Context(), time.Minute); err != nil || !renewed { // from now on memcached, too, knows the owner
			t.Fatal(renewed, err)
		}
		breakIt := func(typed string) (code int, out, errs string) {
			keyboard, tty := terminal(t)
			if _, err := io.WriteString(keyboard, typed); err != nil {
				t.Fatal(err)
			}
			var stdout, stderr bytes.Buffer
			code = Run(t.Context(), append([]string{"lease", "break", "42"}, args...), tty, &stdout, &stderr)
			return code, stdout.String(), stderr.String()
		}
		code, out, errs := breakIt("n\n")
		if code != exitFailed || out != "" || !strings.Contains(errs, `Break the lease of "42" of `+name+` at 127.0.0.1:`) || !strings.Contains(errs, "), held by web-3:4711 (lease ends in ") || !strings.Contains(errs, "the answer was no") {
			t.Errorf("no: %d, %q, %q", code, out, errs)
		}
		if l := read[inspectLine](t, ok(t, append([]string{"inspect", "--json", "42"}, args...)...)); l.Lease == nil {
			t.Error("the lease was broken though the answer was no")
		}
		code, out, errs = breakIt("y\n")
		if code != exitOK || !strings.HasPrefix(out, `broken: the lease of "42" of `+name) || !strings.Contains(out, "), held by web-3:4711 (lease ends in ") {
			t.Errorf("yes: %d, %q, %q", code, out, errs)
		}
		if accepted, err := a.Lease.Fill(t.Context(), []byte("late"), time.Minute); err != nil || accepted {
			t.Errorf("the holder's fill: %v, %v", accepted, err)
		}
	})
}
