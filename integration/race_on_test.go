//go:build race

package integration

// The race detector makes everything several times slower, so bounds that are
// about speed are wider.
const raceEnabled = true
