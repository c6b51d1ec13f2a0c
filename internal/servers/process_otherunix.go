//go:build unix && !linux

package servers

import (
	"os/exec"
	"syscall"
)

func setParentDeathSignal(*syscall.SysProcAttr) {}

func children(int) []int { return nil }

func removeSharedMemory(int) {}

func clearParentDeathSignal(*exec.Cmd) {}
