// Package docs holds no code but the tests of the documentation: its programs run,
// its links lead somewhere, and the tests and files that it names exist.
package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = ".."

// documents are all Markdown files of the repository, by path from the root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		found[filepath.ToSlash(name)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if found["README.md"] == "" {
		t.Fatal("there is no README.md")
	}
	return found
}

var fence = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")

// A program in the README is run as a reader would run it: a main package in a
// module of its own that uses this one. The text block that follows it is its output.
func TestReadmePrograms(t *testing.T) {
	blocks := fence.FindAllStringSubmatch(documents(t)["README.md"], -1)
	programs := 0
	for i, b := range blocks {
		if b[1] != "go" || !strings.HasPrefix(b[2], "package main") {
			continue
		}
		programs++
		if i+1 == len(blocks) || blocks[i+1][1] != "text" {
			t.Fatal("a program is not followed by a text block with its output")
		}
		if got, want := run(t, b[2]), blocks[i+1][2]; got != want {
			t.Errorf("the program prints\n%s\nREADME.md says\n%s", got, want)
		}
	}
	if programs == 0 {
		t.Error("README.md holds no program")
	}
}

// The lines that switch a cache to Redis, or to memcached, compile.
func TestReadmeStoreLines(t *testing.T) {
	readme := documents(t)["README.md"]
	const line = "Store: redisstore.New(client),"
	const memcached = `Store: memcachestore.New("10.0.0.1:11211", "10.0.0.2:11211"),`
	const open = `redisstore.Open("redis://localhost:6379")`
	for _, text := range []string{line, memcached, open} {
		if !strings.Contains(readme, text) {
			t.Fatalf("README.md does not hold %q", text)
		}
	}
	program := `package main

import (
	"context"
	"fmt"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/memcachestore"
	"github.com/onefill/onefill/redisstore"
	"github.com/redis/rueidis"
)

func options(client rueidis.Client) onefill.Options[int64, string] {
	return onefill.Options[int64, string]{
		Load:  func(context.Context, int64) (string, error) { return "", nil },
		` + line + `
	}
}

func onMemcached() onefill.Options[int64, string] {
	return onefill.Options[int64, string]{
		Load:  func(context.Context, int64) (string, error) { return "", nil },
		` + memcached + `
	}
}

func main() {
	store, err := ` + open + `
	fmt.Println(store != nil, err, onMemcached().Store != nil)
}
`
	if got := run(t, program); got != "true <nil> true\n" {
		t.Errorf("it prints %q", got)
	}
}

// run runs a program in a workspace with the modules of this repository and returns
// what it prints.
func run(t *testing.T, program string) string {
	t.Helper()
	here, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("main.go", program)
	write("go.mod", "module readme\n\ngo 1.25.0\n")
	write("go.work", "go 1.25.0\n\nuse (\n\t.\n\t"+here+"\n\t"+filepath.Join(here, "redisstore")+"\n\t"+filepath.Join(here, "memcachestore")+"\n)\n")
	cmd := exec.Command("go", "run", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK="+filepath.Join(dir, "go.work"), "GOFLAGS=")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go run: %v\n%s", err, stderr.String())
	}
	return string(out)
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|href)="([^"]+)"`)

// Links to files of the repository and to headings lead somewhere.
func TestLinks(t *testing.T) {
	docs := documents(t)
	for name, text := range docs {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			target := m[1] + m[2]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			path, anchor, hasAnchor := strings.Cut(target, "#")
			file := name
			if path != "" {
				file = filepath.ToSlash(filepath.Join(filepath.Dir(name), path))
				if _, err := os.Stat(filepath.Join(root, file)); err != nil {
					t.Errorf("%s links to %s, which does not exist", name, target)
					continue
				}
			}
			if hasAnchor && !anchors(docs[file])[anchor] {
				t.Errorf("%s links to %s; %s has no such heading", name, target, file)
			}
		}
	}
}

var (
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors are the fragments of a document's headings, as GitHub makes them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		found[strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return found
}

var (
	named  = regexp.MustCompile("`((?:Test|Fuzz|Benchmark|Example)[A-Z]\\w*)(?:/[^`]*)?`")
	source = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w+)\(`)
	goFile = regexp.MustCompile("`([a-z][\\w/.-]*\\.(?:go|lua|sh))`")
)

// The tests and the source files that documents name exist.
func TestNamesInDocuments(t *testing.T) {
	tests, files := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(name)] = true
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range source.FindAllStringSubmatch(string(text), -1) {
			tests[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range documents(t) {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			if !tests[m[1]] {
				t.Errorf("%s names the test %s, which does not exist", name, m[1])
			}
		}
		for _, m := range goFile.FindAllStringSubmatch(text, -1) {
			if !files[m[1]] {
				t.Errorf("%s names the file %s, which does not exist", name, m[1])
			}
		}
	}
}
