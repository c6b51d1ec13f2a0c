package integration

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// journal is the process's part of the history. Each record is one write to a file,
// at once, so a kill loses nothing that has been told to anybody. Moments are Unix
// nanoseconds, of the one clock of this machine:
//
//	get    begin end key version   a Get that returned a row
//	failed begin end key class     a Get that returned an error
//	try    at key version          a Set or Invalidate begins; the row is committed
//	ack    at key version          it has returned nil
//	store  at                      an operation of the store failed
//	down   at                      a load may run without a lease from now on
type journal struct{ file *os.File }

func (j *journal) add(format string, args ...any) {
	line := fmt.Appendf(nil, format+"\n", args...)
	if _, err := j.file.Write(line); err != nil {
		fmt.Fprintln(os.Stderr, "panic: the journal:", err)
		os.Exit(3)
	}
}

// process is what a journal says.
type process struct {
	gets        []read
	acks        []ack
	tries       int
	storeErrors int
	failed      []string
	down        int
}

type read struct {
	begin, end int64
	key        string
	version    int64
}

type ack struct {
	at      int64
	key     string
	version int64
}

// read reads the journals. A killed process may have left half a line.
func (h *history) read() {
	files, err := filepath.Glob(filepath.Join(h.dir, "*"))
	if err != nil || len(files) < 3 {
		h.t.Fatalf("%d journals: %v", len(files), err)
	}
	h.processes = map[int]*process{}
	for _, name := range files {
		index, err := strconv.Atoi(filepath.Base(name))
		if err != nil {
			h.t.Fatal(err)
		}
		file, err := os.Open(name)
		if err != nil {
			h.t.Fatal(err)
		}
		p := &process{}
		for lines := bufio.NewScanner(file); lines.Scan(); {
			p.record(lines.Text())
		}
		file.Close()
		h.processes[index] = p
	}
}

func (p *process) record(line string) {
	words := strings.Fields(line)
	number := func(i int) int64 {
		n, _ := strconv.ParseInt(words[i], 10, 64)
		return n
	}
	switch {
	case len(words) == 5 && words[0] == "get":
		p.gets = append(p.gets, read{number(1), number(2), words[3], number(4)})
	case len(words) >= 5 && words[0] == "failed":
		p.failed = append(p.failed, line)
	case len(words) == 4 && words[0] == "try":
		p.tries++
	case len(words) == 4 && words[0] == "ack":
		p.acks = append(p.acks, ack{number(1), words[2], number(3)})
	case len(words) == 2 && words[0] == "store":
		p.storeErrors++
	case len(words) == 2 && words[0] == "down":
		p.down++
	}
}
