// Command onefill shows what onefill does on real servers. "onefill lab" makes
// readers in several processes miss the same key at once, against plain
// cache-aside, the usual recipes and onefill, and lets the database count.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/onefill/onefill/cmd/onefill/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := cli.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
