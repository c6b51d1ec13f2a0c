//go:build unix

package cli

import (
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminalSize is how many columns and lines a terminal has; 0, 0 if w is none, or does not say.
func terminalSize(w io.Writer) (columns, lines int) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return int(size.Col), int(size.Row)
}

// onResize tells when the size of the terminal has changed, until stop is called.
func onResize() (resized <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 1) // one that waits is enough: who is told looks at the size as it is then
	signal.Notify(c, syscall.SIGWINCH)
	return c, func() { signal.Stop(c) }
}
