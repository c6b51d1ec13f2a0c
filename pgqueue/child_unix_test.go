//go:build unix

package pgqueue

import (
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
	"testing"
)

// runAs makes a child of root run as somebody else.
func runAs(t testing.TB, cmd *exec.Cmd, name string) {
	t.Helper()
	u, err := user.Lookup(name)
	ok(t, err)
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	ok(t, err)
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	ok(t, err)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}
