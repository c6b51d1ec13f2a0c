package pgqueue

import (
	"os/exec"
	"testing"
)

func runAs(testing.TB, *exec.Cmd, string) {}
