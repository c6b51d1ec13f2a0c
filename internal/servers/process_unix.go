//go:build unix

package servers

import (
	"os/exec"
	"syscall"
)

// setAttributes puts the child into a process group of its own, so that a
// Ctrl-C at the terminal reaches the program that started it and not the server.
func setAttributes(cmd *exec.Cmd, user *account) {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if user != nil {
		attr.Credential = &syscall.Credential{Uid: user.uid, Gid: user.gid}
	}
	setParentDeathSignal(attr)
	cmd.SysProcAttr = attr
}

func (p *process) pause() error { return p.signalAll(syscall.SIGSTOP) }

func (p *process) resume() error { return p.signalAll(syscall.SIGCONT) }

// signalAll reaches the children too: a paused postmaster has backends that
// would go on answering.
func (p *process) signalAll(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return err
	}
	for _, child := range children(p.pid()) {
		syscall.Kill(child, sig) // it may have ended meanwhile
	}
	return nil
}
