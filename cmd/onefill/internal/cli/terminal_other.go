//go:build !unix

package cli

import (
	"io"
	"os"
)

// terminalSize does not know it here.
func terminalSize(io.Writer) (columns, lines int) { return 0, 0 }

// onResize never tells.
func onResize() (resized <-chan os.Signal, stop func()) { return nil, func() {} }
