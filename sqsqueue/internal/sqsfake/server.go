package sqsfake

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"
)

const (
	region  = "us-east-1"
	account = "000000000000"
)

// Server is an SQS with its queues. The zero value has none and is ready.
type Server struct {
	// mu guards everything below and in the queues. Nothing waits under it.
	mu       sync.Mutex
	queues   map[string]*Queue
	receipts map[string]*receipt
	counts   map[string]int
	fault    func(Call) Fault
	serial   int
	more     chan struct{} // closed when a poll shall look again
	closed   bool
}

// Call is one request on its way.
type Call struct {
	Op    string // "ReceiveMessage", ...
	Queue string // its name
	// Entries is how many entries a batch has; for ReceiveMessage, MaxNumberOfMessages.
	Entries int
}

// Fault is what happens to one request. The zero value is nothing.
type Fault struct {
	// Hold comes before the request is applied: it waits until the channel is closed.
	Hold <-chan struct{}
	// Err is the answer, and nothing is applied.
	Err *Error
	// Drop breaks the connection without applying anything; LoseReply after applying.
	Drop, LoseReply bool
	// ReplyHold comes after the request was applied.
	ReplyHold <-chan struct{}
	// Entry makes single entries of a batch fail, those for whose index it returns an
	// error. Silent leaves them out of the answer.
	Entry  func(i int) *Error
	Silent bool
}

// Error is an error of the service. Status is 400 unless it is set.
type Error struct {
	Code, Message string
	Status        int
	// Receiver: it is the service's fault, SenderFault is false.
	Receiver bool
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// SetFault makes decide say what happens to each request from now on; nil ends that. It
// runs on the request's goroutine with no lock held.
func (s *Server) SetFault(decide func(Call) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = decide
}

// Counts returns how many requests of each operation were begun.
func (s *Server) Counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.counts)
}

// Close ends the polls that wait, and all to come at once.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.wake()
}

// wake makes every poll look again.
func (s *Server) wake() {
	if s.more != nil {
		close(s.more)
	}
	s.more = make(chan struct{})
}

// Do is what the SDK calls of an HTTP client. The request is served on a goroutine of its
// own and goes on when its context ends, as it does at the other end of a network.
func (s *Server) Do(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	type answer struct {
		res     *http.Response
		dropped bool
	}
	answers := make(chan answer, 1)
	go func() {
		w := httptest.NewRecorder()
		w.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
		dropped := s.serve(w, r.Header, body)
		answers <- answer{w.Result(), dropped}
	}()
	select {
	case a := <-answers:
		if a.dropped {
			return nil, io.ErrUnexpectedEOF
		}
		return a.res, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// ServeHTTP serves the SDK over connections. It does not look whether the client is still
// there, nor does the service.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || s.serve(w, r.Header, body) {
		panic(http.ErrAbortHandler)
	}
}

// serve answers one request. dropped: the client shall get no answer.
func (s *Server) serve(w http.ResponseWriter, h http.Header, body []byte) (dropped bool) {
	op := strings.TrimPrefix(h.Get("X-Amz-Target"), "AmazonSQS.")
	var in input
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(&in); err != nil {
		write(w, nil, &Error{Code: "SerializationException", Message: err.Error()})
		return false
	}
	f := s.begin(op, &in)
	wait(f.Hold)
	if f.Drop {
		return true
	}
	var out any
	err := f.Err
	if err == nil {
		out, err = s.apply(op, &in, f)
	}
	wait(f.ReplyHold)
	if f.LoseReply {
		return true
	}
	write(w, out, err)
	return false
}

func wait(c <-chan struct{}) {
	if c != nil {
		<-c
	}
}

func (s *Server) begin(op string, in *input) Fault {
	s.mu.Lock()
	if s.counts == nil {
		s.counts = make(map[string]int)
	}
	s.counts[op]++
	decide := s.fault
	s.mu.Unlock()
	if decide == nil {
		return Fault{}
	}
	call := Call{Op: op, Queue: nameOf(in.QueueUrl), Entries: len(in.Entries)}
	if op == "ReceiveMessage" {
		call.Entries = in.MaxNumberOfMessages
	}
	return decide(call)
}

// oldCodes are what the service says of an error in the header that is for clients of its
// older protocol, where that is another code.
var oldCodes = map[string]string{
	"QueueDoesNotExist": "AWS.SimpleQueueService.NonExistentQueue",
	"OverLimit":         "OverLimit",
}

// write answers; a client that does not take the answer is its own affair.
func write(w http.ResponseWriter, out any, e *Error) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.Header().Set("X-Amzn-RequestId", "00000000-0000-0000-0000-000000000000")
	status := http.StatusOK
	if e != nil {
		out = map[string]string{"__type": "com.amazonaws.sqs#" + e.Code, "message": e.Message}
		if status = e.Status; status == 0 {
			status = http.StatusBadRequest
		}
		if old := oldCodes[e.Code]; old != "" {
			w.Header().Set("X-Amzn-Query-Error", old+";Sender")
		}
	}
	body, err := json.Marshal(out)
	if err != nil {
		panic(err) // maps, structs and strings
	}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

func nameOf(queueURL string) string { return queueURL[strings.LastIndexByte(queueURL, '/')+1:] }

func urlOf(name string) string {
	return fmt.Sprintf("http://sqs.%s.localhost/%s/%s", region, account, name)
}

func arnOf(name string) string { return fmt.Sprintf("arn:aws:sqs:%s:%s:%s", region, account, name) }
