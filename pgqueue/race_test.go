//go:build race

package pgqueue

const raceEnabled = true
