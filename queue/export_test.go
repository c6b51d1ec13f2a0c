package queue

var Backoff = backoff
