package sqsfake

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Queue is a queue. Its server's mu guards it.
type Queue struct {
	name     string
	attrs    map[string]string
	messages []*message // in the order in which they came
	deduped  map[string]deduped
	pretend  int // messages in flight that are not there
}

type deduped struct {
	id string
	at time.Time
}

type message struct {
	id        string
	serial    int
	body, md5 string
	group     string
	dedup     string
	sent      time.Time
	first     time.Time // received for the first time
	received  time.Time
	visible   time.Time // when it can be received
	delayed   bool      // it is hidden since it was sent with a delay
	count     int
	receipt   *receipt // of the last receive
	gone      bool
}

// receipt is what a receipt handle stands for.
type receipt struct {
	queue   *Queue
	message *message
}

func (m *message) inFlight(now time.Time) bool { return m.receipt != nil && m.visible.After(now) }

var defaults = map[string]string{
	"VisibilityTimeout": "30", "ReceiveMessageWaitTimeSeconds": "0", "MessageRetentionPeriod": "345600",
	"MaximumMessageSize": strconv.Itoa(maxBytes), "DelaySeconds": "0",
}

var settable = []string{"VisibilityTimeout", "ReceiveMessageWaitTimeSeconds", "MessageRetentionPeriod", "MaximumMessageSize", "DelaySeconds",
	"RedrivePolicy", "FifoQueue", "ContentBasedDeduplication"}

func (s *Server) create(in *input) (any, *Error) {
	if strings.HasSuffix(in.QueueName, ".fifo") != (in.Attributes["FifoQueue"] == "true") {
		return nil, invalid("The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with .fifo suffix and be 1 to 80 in length.")
	}
	if q := s.queues[in.QueueName]; q != nil {
		for name, value := range in.Attributes {
			if q.attrs[name] != value {
				return nil, &Error{Code: "QueueNameExists", Message: "A queue already exists with the same name and a different value for attribute " + name}
			}
		}
		return map[string]string{"QueueUrl": urlOf(in.QueueName)}, nil
	}
	q := &Queue{name: in.QueueName, attrs: maps.Clone(defaults), deduped: make(map[string]deduped)}
	if err := q.set(in.Attributes); err != nil {
		return nil, err
	}
	if s.queues == nil {
		s.queues = make(map[string]*Queue)
	}
	s.queues[q.name] = q
	return map[string]string{"QueueUrl": urlOf(q.name)}, nil
}

func (q *Queue) set(attrs map[string]string) *Error {
	for name, value := range attrs {
		if !slices.Contains(settable, name) {
			return &Error{Code: "InvalidAttributeName", Message: "Unknown Attribute " + name + "."}
		}
		if name == "RedrivePolicy" && value != "" && !json.Valid([]byte(value)) {
			return invalid("Value %s for parameter RedrivePolicy is invalid.", value)
		}
	}
	maps.Copy(q.attrs, attrs)
	return nil
}

func (q *Queue) get(names []string) map[string]string {
	now := time.Now()
	all := maps.Clone(q.attrs)
	all["QueueArn"] = arnOf(q.name)
	inFlight, delayed := q.inFlight(now), 0
	for _, m := range q.messages {
		if m.delayed && m.visible.After(now) {
			delayed++
		}
	}
	all["ApproximateNumberOfMessagesNotVisible"] = strconv.Itoa(inFlight)
	all["ApproximateNumberOfMessagesDelayed"] = strconv.Itoa(delayed)
	all["ApproximateNumberOfMessages"] = strconv.Itoa(len(q.messages) - (inFlight - q.pretend) - delayed)
	if slices.Contains(names, "All") {
		return all
	}
	maps.DeleteFunc(all, func(name, _ string) bool { return !slices.Contains(names, name) })
	return all
}

func (q *Queue) fifo() bool { return q.attrs["FifoQueue"] == "true" }

func (q *Queue) number(name string) int {
	n, _ := strconv.Atoi(q.attrs[name])
	return n
}

func (q *Queue) redrive() (dead string, after int) {
	var p struct {
		DeadLetterTargetArn string
		MaxReceiveCount     json.Number
	}
	if json.Unmarshal([]byte(q.attrs["RedrivePolicy"]), &p) != nil {
		return "", 0
	}
	after, _ = strconv.Atoi(p.MaxReceiveCount.String())
	return p.DeadLetterTargetArn[strings.LastIndexByte(p.DeadLetterTargetArn, ':')+1:], after
}

func (q *Queue) inFlight(now time.Time) int {
	n := q.pretend
	for _, m := range q.messages {
		if m.inFlight(now) {
			n++
		}
	}
	return n
}

// available are the messages that can be received now, first those that have been visible
// for longest; on a FIFO queue in the order of their groups, each of which stops at a
// message that is not visible: an earlier one is not hidden by a later one.
func (q *Queue) available(now time.Time) (ms []*message) {
	blocked := make(map[string]bool)
	for _, m := range q.messages {
		switch {
		case q.fifo() && blocked[m.group]:
		case m.visible.After(now):
			blocked[m.group] = true
		default:
			ms = append(ms, m)
		}
	}
	if !q.fifo() {
		slices.SortStableFunc(ms, func(a, b *message) int { return a.visible.Compare(b.visible) })
	}
	return ms
}

// next is how long it takes until something becomes visible; 0 if something is, or
// nothing will.
func (q *Queue) next(now time.Time) (d time.Duration) {
	for _, m := range q.messages {
		if left := m.visible.Sub(now); left > 0 && (d == 0 || left < d) {
			d = left
		}
	}
	return d
}

func (q *Queue) remove(m *message) {
	q.messages = slices.DeleteFunc(q.messages, func(other *message) bool { return other == m })
}

// Message is what a queue holds of one message.
type Message struct {
	ID, Body, Group string
	Receives        int
	// Left is for how long it is hidden.
	Left time.Duration
}

// Messages lists the messages of a queue, in the order in which they came.
func (s *Server) Messages(queue string) []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[queue]
	if q == nil {
		panic(fmt.Sprintf("sqsfake: no queue %q", queue))
	}
	ms := make([]Message, len(q.messages))
	for i, m := range q.messages {
		ms[i] = Message{m.id, m.body, m.group, m.count, max(0, time.Until(m.visible))}
	}
	return ms
}

// PretendInFlight makes a queue act as if that many more messages were in flight.
func (s *Server) PretendInFlight(queue string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues[queue].pretend = n
	s.wake()
}
