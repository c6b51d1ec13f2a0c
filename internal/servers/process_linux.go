package servers

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

func setParentDeathSignal(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// children returns the process ids whose parent is pid.
func children(pid int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var found []int
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state ppid ...; the name may hold spaces and parentheses.
		_, rest, _ := bytes.Cut(data[bytes.LastIndexByte(data, ')')+1:], []byte(" "))
		fields := bytes.Fields(rest)
		if len(fields) < 2 || string(fields[1]) != strconv.Itoa(pid) {
			continue
		}
		if child, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			found = append(found, child)
		}
	}
	return found
}

// removeSharedMemory removes the System V segment that a killed Postgres leaves.
func removeSharedMemory(id int) {
	const ipcRmid = 0
	syscall.Syscall(syscall.SYS_SHMCTL, uintptr(id), ipcRmid, 0)
}

func clearParentDeathSignal(cmd *exec.Cmd) { cmd.SysProcAttr.Pdeathsig = 0 }
