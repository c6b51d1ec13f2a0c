package pgqueue

import (
	"os/exec"
	"syscall"
)

// dieWithParent keeps a child from outliving a test process that is killed. A child of
// root that changes its own user would forget it; see runAs.
func dieWithParent(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}
