//go:build !unix

package servers

import (
	"errors"
	"os/exec"
)

func setAttributes(*exec.Cmd, *account) {}

func (p *process) pause() error { return errors.ErrUnsupported }

func (p *process) resume() error { return errors.ErrUnsupported }

func removeSharedMemory(int) {}

func clearParentDeathSignal(*exec.Cmd) {}
