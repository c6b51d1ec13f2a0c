package integration

import "syscall"

// childAttributes makes a child die with the test, also when it is paused and
// cannot see that its input has ended.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
