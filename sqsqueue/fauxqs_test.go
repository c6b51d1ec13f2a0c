package sqsqueue

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"

	"github.com/onefill/onefill/queue/queuetest"
)

// fauxqs is somebody else's idea of SQS, so that our own fake is not the only witness. It
// is found in the directory that ONEFILL_FAUXQS names:
//
//	npm install --prefix DIR node@22 fauxqs@2.4.1
//	ONEFILL_FAUXQS=DIR go test ./...

// startFauxqs starts it on the loopback interface and returns its address. It ends with
// the test, at the latest with this process.
func startFauxqs(t *testing.T) (endpoint string) {
	t.Helper()
	dir := os.Getenv("ONEFILL_FAUXQS")
	if dir == "" {
		t.Skip("ONEFILL_FAUXQS is not set; npm install --prefix DIR node@22 fauxqs@2.4.1, then ONEFILL_FAUXQS=DIR")
	}
	dir, err := filepath.Abs(dir)
	must(t, err)
	app := filepath.Join(dir, "node_modules", "fauxqs", "dist", "app.js")
	if _, err := os.Stat(app); err != nil {
		t.Fatalf("ONEFILL_FAUXQS: %v; npm install --prefix %s node@22 fauxqs@2.4.1", err, dir)
	}
	node := filepath.Join(dir, "node_modules", ".bin", "node") // it needs 22.5 or newer
	if _, err := os.Stat(node); err != nil {
		node = "node"
	}
	cmd := exec.Command(node, filepath.Join("testdata", "fauxqs.mjs"), app)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("fauxqs has not told its address: %v", err)
	}
	return strings.TrimSpace(line)
}

// TestConformanceOnFauxqs runs the suite on it.
func TestConformanceOnFauxqs(t *testing.T) {
	endpoint := startFauxqs(t)
	t.Run("standard", func(t *testing.T) { queuetest.Run(t, harness(endpoint, "")) })
	t.Run("FIFO", func(t *testing.T) { queuetest.Run(t, harness(endpoint, ".fifo")) })
}

// TestFactsOnFauxqs shows which of the facts hold there, too.
func TestFactsOnFauxqs(t *testing.T) {
	endpoint := startFauxqs(t)
	for _, f := range facts {
		t.Run(f.name, func(t *testing.T) {
			if f.notFauxqs != "" {
				t.Skip("fauxqs: " + f.notFauxqs)
			}
			t.Parallel()
			f.test(newBare(t, clientOf(endpoint, awshttp.NewBuildableClient()), f.fifo))
		})
	}
}
