package otelonefill

// Followed is how many flights the Telemetry knows spans of.
func (t *Telemetry) Followed() int {
	t.spans.mu.Lock()
	defer t.spans.mu.Unlock()
	return len(t.spans.flights)
}
