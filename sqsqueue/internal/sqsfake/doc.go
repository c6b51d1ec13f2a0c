// Package sqsfake is Amazon SQS in the process, as far as this module needs it: the
// service's JSON protocol, so that the real SDK speaks to it, with the behaviour that
// tests against the real service have shown (docs/sqs.md lists it), a plan of faults, and
// a clock that a testing/synctest bubble controls, since all it knows of time is
// time.Now and timers.
//
// A [Server] is an http.Handler, for real connections, and with Do an HTTP client of the
// SDK, for bubbles, in which nothing may wait on a socket.
//
// It is strict where the service is lenient: messages come in the order in which they
// became visible, counts are exact, nothing is delivered twice. Tests force what they
// need of the rest.
package sqsfake
