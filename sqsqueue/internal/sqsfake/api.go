package sqsfake

import (
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// input holds the members of all requests.
type input struct {
	QueueUrl                    string
	QueueName                   string
	Attributes                  map[string]string
	AttributeNames              []string
	MaxNumberOfMessages         int
	VisibilityTimeout           *int
	WaitTimeSeconds             *int
	MessageSystemAttributeNames []string
	Entries                     []entry

	// SendMessage
	MessageBody            string
	MessageGroupId         string
	MessageDeduplicationId string
	DelaySeconds           *int
}

type entry struct {
	Id                     string
	ReceiptHandle          string
	VisibilityTimeout      *int
	MessageBody            string
	MessageGroupId         string
	MessageDeduplicationId string
	DelaySeconds           *int
}

type failed struct {
	Id, Code, Message string
	SenderFault       bool
}

type done struct {
	Id               string
	MessageId        string `json:",omitempty"`
	MD5OfMessageBody string `json:",omitempty"`
}

type batchOutput struct {
	Successful []done
	Failed     []failed
}

func (s *Server) apply(op string, in *input, f Fault) (any, *Error) {
	if op == "ReceiveMessage" {
		return s.receive(in)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.wake()
	switch op {
	case "CreateQueue":
		return s.create(in)
	case "GetQueueUrl":
		if s.queues[in.QueueName] == nil {
			return nil, noQueue()
		}
		return map[string]string{"QueueUrl": urlOf(in.QueueName)}, nil
	}
	q := s.queues[nameOf(in.QueueUrl)]
	if q == nil {
		return nil, noQueue()
	}
	switch op {
	case "DeleteQueue":
		delete(s.queues, q.name)
		return struct{}{}, nil
	case "SetQueueAttributes":
		return struct{}{}, q.set(in.Attributes)
	case "GetQueueAttributes":
		return map[string]any{"Attributes": q.get(in.AttributeNames)}, nil
	case "SendMessage":
		d, err := s.send(q, &entry{MessageBody: in.MessageBody, MessageGroupId: in.MessageGroupId, MessageDeduplicationId: in.MessageDeduplicationId, DelaySeconds: in.DelaySeconds})
		return d, err
	case "SendMessageBatch":
		return batch(in, f, true, func(e *entry) (done, *Error) { return s.send(q, e) })
	case "DeleteMessageBatch":
		return batch(in, f, false, func(e *entry) (done, *Error) { return done{}, s.delete(q, e) })
	case "ChangeMessageVisibilityBatch":
		return batch(in, f, false, func(e *entry) (done, *Error) { return done{}, s.change(q, e) })
	}
	return nil, &Error{Code: "UnsupportedOperation", Message: op}
}

func noQueue() *Error {
	return &Error{Code: "QueueDoesNotExist", Message: "The specified queue does not exist."}
}

func invalid(format string, args ...any) *Error {
	return &Error{Code: "InvalidParameterValue", Message: fmt.Sprintf(format, args...)}
}

const (
	maxBytes    = 1 << 20
	maxInFlight = 120_000
)

var entryID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`)

// batch applies the entries of a batch, each with a result of its own.
func batch(in *input, f Fault, sends bool, apply func(*entry) (done, *Error)) (any, *Error) {
	if err := checkBatch(in, sends); err != nil {
		return nil, err
	}
	out := batchOutput{Successful: []done{}, Failed: []failed{}}
	for i := range in.Entries {
		e := &in.Entries[i]
		var err *Error
		if f.Entry != nil {
			err = f.Entry(i)
			if err != nil && f.Silent {
				continue
			}
		}
		var d done
		if err == nil {
			d, err = apply(e)
		}
		if err != nil {
			out.Failed = append(out.Failed, failed{e.Id, err.Code, err.Message, !err.Receiver})
			continue
		}
		d.Id = e.Id
		out.Successful = append(out.Successful, d)
	}
	return out, nil
}

func checkBatch(in *input, sends bool) *Error {
	if len(in.Entries) == 0 {
		return &Error{Code: "EmptyBatchRequest", Message: "The batch request doesn't contain any entries."}
	}
	if len(in.Entries) > 10 {
		return &Error{Code: "TooManyEntriesInBatchRequest", Message: fmt.Sprintf("Maximum number of entries per request are 10. You have sent %d.", len(in.Entries))}
	}
	ids, bytes := map[string]bool{}, 0
	for _, e := range in.Entries {
		if !entryID.MatchString(e.Id) {
			return &Error{Code: "InvalidBatchEntryId", Message: "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 letters long."}
		}
		if ids[e.Id] {
			return &Error{Code: "BatchEntryIdsNotDistinct", Message: "Id " + e.Id + " repeated."}
		}
		ids[e.Id] = true
		bytes += len(e.MessageBody)
	}
	if sends && bytes > maxBytes {
		return &Error{Code: "BatchRequestTooLong", Message: fmt.Sprintf("Batch requests cannot be longer than %d bytes. You have sent %d bytes.", maxBytes, bytes)}
	}
	return nil
}

// groupName is what a message group and a deduplication ID may be.
var groupName = regexp.MustCompile(`^[A-Za-z0-9!"#$%&'()*+,\-./:;<=>?@\[\\\]^_{|}~` + "`" + `]{1,128}$`)

func (s *Server) send(q *Queue, e *entry) (done, *Error) {
	if err := q.checkMessage(e); err != nil {
		return done{}, err
	}
	now := time.Now()
	sum := md5.Sum([]byte(e.MessageBody))
	d := done{MD5OfMessageBody: hex.EncodeToString(sum[:])}
	if q.fifo() {
		if before, ok := q.deduped[e.MessageDeduplicationId]; ok && now.Sub(before.at) < 5*time.Minute {
			d.MessageId = before.id
			return d, nil
		}
	}
	s.serial++
	m := &message{
		id: fmt.Sprintf("00000000-0000-4000-8000-%012d", s.serial), serial: s.serial, body: e.MessageBody, md5: d.MD5OfMessageBody,
		sent: now, visible: now, group: e.MessageGroupId, dedup: e.MessageDeduplicationId,
	}
	delay := q.number("DelaySeconds")
	if e.DelaySeconds != nil {
		delay = *e.DelaySeconds
	}
	m.visible = now.Add(time.Duration(delay) * time.Second)
	m.delayed = delay > 0
	if q.fifo() {
		q.deduped[m.dedup] = deduped{m.id, now}
	}
	q.messages = append(q.messages, m)
	d.MessageId = m.id
	return d, nil
}

func (q *Queue) checkMessage(e *entry) *Error {
	switch {
	case e.MessageBody == "":
		return &Error{Code: "MissingParameter", Message: "The request must contain the parameter MessageBody."}
	case len(e.MessageBody) > q.number("MaximumMessageSize"):
		return invalid("One or more parameters are invalid. Reason: Message must be shorter than %d bytes.", q.number("MaximumMessageSize"))
	case !utf8.ValidString(e.MessageBody) || strings.ContainsFunc(e.MessageBody, refused):
		return &Error{Code: "InvalidMessageContents", Message: "Message contains characters outside the allowed set."}
	case e.DelaySeconds != nil && (*e.DelaySeconds < 0 || *e.DelaySeconds > 900):
		return invalid("Value %d for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900.", *e.DelaySeconds)
	case !q.fifo():
		return nil
	case e.DelaySeconds != nil && *e.DelaySeconds > 0:
		return invalid("Value %d for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid for this queue type.", *e.DelaySeconds)
	case !groupName.MatchString(e.MessageGroupId):
		return invalid("The MessageGroupId %q is missing or invalid.", e.MessageGroupId)
	case !groupName.MatchString(e.MessageDeduplicationId):
		return invalid("The MessageDeduplicationId %q is missing or invalid.", e.MessageDeduplicationId)
	}
	return nil
}

// refused says whether SQS refuses a character.
func refused(r rune) bool {
	return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == '\uFFFE' || r == '\uFFFF'
}

// claim finds the message of a receipt handle. The message is nil if it is gone; newest
// is false if it was received again since.
func (s *Server) claim(q *Queue, handle string) (m *message, newest bool, err *Error) {
	r := s.receipts[handle]
	if r == nil || r.queue != q {
		return nil, false, &Error{Code: "ReceiptHandleIsInvalid", Message: "The input receipt handle is invalid."}
	}
	if r.message.gone {
		return nil, true, nil
	}
	return r.message, r.message.receipt == r, nil
}

// delete deletes a message. On a standard queue an old handle says that it has, and does
// nothing; one that has expired works as long as nobody has received the message again.
func (s *Server) delete(q *Queue, e *entry) *Error {
	m, newest, err := s.claim(q, e.ReceiptHandle)
	if err != nil || m == nil {
		return err
	}
	if q.fifo() && (!newest || !m.inFlight(time.Now())) {
		return invalid("Value %s for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.", e.ReceiptHandle)
	}
	if newest {
		q.remove(m)
		m.gone = true
	}
	return nil
}

const most = 43200 // seconds for which a message can be hidden after its receipt

func (s *Server) change(q *Queue, e *entry) *Error {
	m, newest, err := s.claim(q, e.ReceiptHandle)
	now := time.Now()
	switch {
	case err != nil:
		return err
	case e.VisibilityTimeout == nil:
		return &Error{Code: "MissingParameter", Message: "The request must contain the parameter VisibilityTimeout."}
	case *e.VisibilityTimeout < 0 || *e.VisibilityTimeout > most:
		return invalid("Value %d for parameter VisibilityTimeout is invalid. Reason: VisibilityTimeout must be an integer between 0 and %d.", *e.VisibilityTimeout, most)
	case m == nil || !newest:
		return invalid("Value %s for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for visibility timeout change.", e.ReceiptHandle)
	case !m.inFlight(now):
		return &Error{Code: "MessageNotInflight", Message: "The specified message isn't in flight."}
	}
	visible := now.Add(time.Duration(*e.VisibilityTimeout) * time.Second)
	if visible.After(m.received.Add(most * time.Second)) {
		return invalid("Value %d for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the message is beyond the limit [%d seconds]", *e.VisibilityTimeout, most)
	}
	m.visible = visible
	return nil
}

type messageOutput struct {
	MessageId, ReceiptHandle, Body, MD5OfBody string
	Attributes                                map[string]string
}

// receive waits for messages, whether or not its client does.
func (s *Server) receive(in *input) (any, *Error) {
	if in.MaxNumberOfMessages == 0 {
		in.MaxNumberOfMessages = 1
	}
	if in.MaxNumberOfMessages < 1 || in.MaxNumberOfMessages > 10 {
		return nil, invalid("Value %d for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided.", in.MaxNumberOfMessages)
	}
	var end time.Time
	for {
		s.mu.Lock()
		q := s.queues[nameOf(in.QueueUrl)]
		if q == nil {
			s.mu.Unlock()
			return nil, noQueue()
		}
		lasts, waits := q.number("VisibilityTimeout"), q.number("ReceiveMessageWaitTimeSeconds")
		if in.VisibilityTimeout != nil {
			lasts = *in.VisibilityTimeout
		}
		if in.WaitTimeSeconds != nil {
			waits = *in.WaitTimeSeconds
		}
		if lasts < 0 || lasts > most || waits < 0 || waits > 20 {
			s.mu.Unlock()
			return nil, invalid("VisibilityTimeout %d, WaitTimeSeconds %d", lasts, waits)
		}
		now := time.Now()
		if end.IsZero() {
			end = now.Add(time.Duration(waits) * time.Second)
		}
		if waits == 0 && !q.fifo() && q.inFlight(now) >= maxInFlight && len(q.available(now)) > 0 {
			s.mu.Unlock()
			return nil, &Error{Code: "OverLimit", Message: "Too many messages in flight.", Status: http.StatusForbidden}
		}
		found := s.take(q, in, time.Duration(lasts)*time.Second, now)
		if s.more == nil {
			s.more = make(chan struct{})
		}
		more, next, closed := s.more, q.next(now), s.closed
		s.mu.Unlock()
		if len(found) > 0 || closed || !now.Before(end) {
			return map[string]any{"Messages": found}, nil
		}
		look := end.Sub(now)
		if next > 0 {
			look = min(look, next)
		}
		timer := time.NewTimer(look)
		select {
		case <-more:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// take receives what can be received now.
func (s *Server) take(q *Queue, in *input, lasts time.Duration, now time.Time) (found []messageOutput) {
	room := min(in.MaxNumberOfMessages, maxInFlight-q.inFlight(now))
	for _, m := range q.available(now) {
		if len(found) >= room {
			break
		}
		if dead, after := q.redrive(); after > 0 && m.count >= after && s.queues[dead] != nil {
			q.remove(m)
			target := s.queues[dead]
			m.receipt, m.visible = nil, now
			target.messages = append(target.messages, m)
			continue
		}
		s.serial++
		m.count++
		m.receipt = &receipt{q, m}
		handle := fmt.Sprintf("AQEB/%d+%s==", s.serial, m.md5)
		if s.receipts == nil {
			s.receipts = make(map[string]*receipt)
		}
		s.receipts[handle] = m.receipt
		m.visible, m.received, m.delayed = now.Add(lasts), now, false
		if m.first.IsZero() {
			m.first = now
		}
		found = append(found, messageOutput{m.id, handle, m.body, m.md5, m.attributes(in.MessageSystemAttributeNames)})
	}
	return found
}

func (m *message) attributes(names []string) map[string]string {
	all := map[string]string{
		"ApproximateReceiveCount":          strconv.Itoa(m.count),
		"ApproximateFirstReceiveTimestamp": strconv.FormatInt(m.first.UnixMilli(), 10),
		"SentTimestamp":                    strconv.FormatInt(m.sent.UnixMilli(), 10),
		"SequenceNumber":                   strconv.Itoa(m.serial),
	}
	if m.group != "" {
		all["MessageGroupId"], all["MessageDeduplicationId"] = m.group, m.dedup
	}
	got := make(map[string]string)
	for _, name := range names {
		if value, ok := all[name]; ok {
			got[name] = value
		}
	}
	return got
}
