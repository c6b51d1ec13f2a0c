package cli

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/sqsqueue"
)

// startFauxqs starts somebody else's SQS, as the tests of sqsqueue do: there is no real
// service to be had. ONEFILL_FAUXQS names the directory that it is installed in
// (docs/sqs.md).
func startFauxqs(t *testing.T) (endpoint string) {
	t.Helper()
	dir := os.Getenv("ONEFILL_FAUXQS")
	if dir == "" {
		t.Skip("ONEFILL_FAUXQS is not set; npm install --prefix DIR node@22 fauxqs@2.4.1, then ONEFILL_FAUXQS=DIR")
	}
	app, err := filepath.Abs(filepath.Join(dir, "node_modules", "fauxqs", "dist", "app.js"))
	must(t, err)
	node := filepath.Join(dir, "node_modules", ".bin", "node")
	if _, err := os.Stat(node); err != nil {
		node = "node"
	}
	cmd := exec.Command(node, filepath.Join("..", "..", "..", "..", "sqsqueue", "testdata", "fauxqs.mjs"), app)
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
	must(t, err)
	return strings.TrimSpace(line)
}

func fakeCredentials(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
}

func TestDoctorSQS(t *testing.T) {
	endpoint := startFauxqs(t)
	fakeCredentials(t)
	t.Setenv("AWS_ENDPOINT_URL_SQS", endpoint) // the URLs that it makes have a host that no resolver knows
	client, err := sqsClient(t.Context(), endpoint+"/1/q")
	must(t, err)
	q, err := sqsqueue.Create(t.Context(), client, "jobs")
	must(t, err)
	url := queueURL(t, client, "jobs")
	e := examine(t, "--strict", "--sqs", url)
	e.allFine(t)
	if len(e.all) != 3 {
		t.Errorf("%+v", e.all)
	}
	e = examine(t, "--sqs", url, "--handler-timeout", "10m")
	e.finds(t, "settings", levelFail, "VisibilityTimeout is 2m0s")

	_, err = q.Enqueue(t.Context(), queue.Job{Kind: "a"})
	must(t, err)
	bury(t, q, 1)
	e = examine(t, "--sqs", url)
	e.finds(t, "dead-letters", levelWarn, "1 letter")

	// One that somebody has made without a thought: no dead letters, no long polls.
	out, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: aws.String("bare")})
	must(t, err)
	e = examine(t, "--sqs", *out.QueueUrl)
	e.finds(t, "settings", levelFail, "RedrivePolicy")
	e = examine(t, "--sqs", strings.Replace(url, "jobs", "absent", 1))
	e.finds(t, "connect", levelFail, "")
}

func queueURL(t *testing.T, client *sqs.Client, name string) string {
	t.Helper()
	out, err := client.GetQueueUrl(t.Context(), &sqs.GetQueueUrlInput{QueueName: &name})
	must(t, err)
	return *out.QueueUrl
}

// Without the service: an address where nobody is, and URLs that are none.
func TestDoctorSQSUnreachable(t *testing.T) {
	fakeCredentials(t)
	t.Setenv("AWS_MAX_ATTEMPTS", "1")
	e := examine(t, "--sqs", "http://127.0.0.1:1/123456789012/jobs", "--timeout", "2s")
	e.finds(t, "connect", levelFail, "connection refused")
	for _, f := range e.all {
		if strings.Contains(fmt.Sprint(f), "secret") {
			t.Errorf("the credentials are shown: %+v", f)
		}
	}
	for _, url := range []string{"jobs", "https://sqs.eu-west-1.amazonaws.com", "ftp://h/1/q", "https://"} {
		fails(t, exitInput, "--sqs: not the URL of a queue", "doctor", "--sqs", url)
	}
	fails(t, exitInput, "--handler-timeout", "doctor", "--sqs", "https://h/1/q", "--handler-timeout", "-1s")
	for url, want := range map[string]string{"https://sqs.eu-west-1.amazonaws.com/1/q": "eu-west-1", "https://sqs.cn-north-1.amazonaws.com.cn/1/q": "cn-north-1", "http://h:1/1/q": "us-east-1"} {
		t.Setenv("AWS_REGION", "")
		client, err := sqsClient(t.Context(), url)
		must(t, err)
		if got := client.Options().Region; got != want {
			t.Errorf("%s: region %q", url, got)
		}
	}
}
