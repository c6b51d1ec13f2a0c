package pgqueue

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/queuetest"
)

// pgbouncer starts a PgBouncer in transaction mode before the server that all tests
// share, and returns a URL that goes through it.
func pgbouncer(t testing.TB) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/pgbouncer"); err != nil {
			t.Skip("PgBouncer is not installed (Debian: pgbouncer)")
		}
	}
	dir, port := t.TempDir(), freePort(t)
	config := filepath.Join(dir, "pgbouncer.ini")
	text := fmt.Sprintf(`[databases]
postgres = host=127.0.0.1 port=%d user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 5
max_client_conn = 500
`, shared.Get(t).Port(), port)
	ok(t, os.WriteFile(config, []byte(text), 0o644))
	cmd := exec.Command(program, config)
	if os.Geteuid() == 0 { // it refuses to run as root
		runAs(t, cmd, "nobody")
		for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
			ok(t, os.Chmod(d, 0o755))
		}
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	ok(t, err)
	cmd.Stdout, cmd.Stderr = log, log
	dieWithParent(cmd)
	ok(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		log.Close()
	})
	addr := "127.0.0.1:" + strconv.Itoa(port)
	eventually(t, "PgBouncer answers", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return "postgres://postgres@" + addr + "/postgres?sslmode=disable"
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	ok(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// TestConformancePgBouncer is the suite through PgBouncer in transaction mode, where
// each transaction may be on another connection to the server: nothing may stay on one.
// There are fewer of those than clients.
func TestConformancePgBouncer(t *testing.T) {
	t.Parallel()
	queuetest.Run(t, harness(pgbouncer(t), beginPgx))
}

// TestNotifyBehindPgBouncer asks for notifications where they do not pass: the probe
// finds it out, and jobs are delivered by polling.
func TestNotifyBehindPgBouncer(t *testing.T) {
	t.Parallel()
	url := pgbouncer(t)
	logged := make(logs, 10)
	q := openedOn(t, url, fresh(), Notify(), PollInterval(20*time.Millisecond), Logger(logged.logger()))
	q.wakeups.probeLimit = 100 * time.Millisecond
	got := make(chan error, 1)
	go func() {
		ds, err := q.Receive(t.Context(), queue.Request{Max: 1, Wait: patience, Lease: time.Minute})
		if err == nil && len(ds) != 1 {
			err = errors.New("no job")
		}
		got <- err
	}()
	select {
	case line := <-logged:
		contains(t, errors.New(line), "notifications do not arrive", "pooler in transaction mode")
	case <-time.After(patience):
		t.Fatal("nobody was told that notifications do not arrive")
	}
	q.enqueued(t, queue.Job{Kind: "k"})
	ok(t, <-got)
	if q.Listening() {
		t.Error("Listening() = true")
	}
}
