package lab

import (
	"context"
	"fmt"
	"time"
)

// Wave is what came of all callers asking at once, in S7.
type Wave struct {
	Phase string  `json:"phase"`
	Loads int     `json:"loads"`
	Calls tally   `json:"calls"`
	P99MS float64 `json:"p99_ms"` // of the wait
}

// wavePolicy lets local values outlast the scenario. The limits are such that they would
// matter if a process did not join its misses.
func wavePolicy(c *cell) policy {
	return policy{StoreTimeout: storeTimeout, LocalTTL: 10*time.Second + 4*c.run.cfg.Load, MaxLoads: 8, MaxLoadsDegraded: 2}
}

// knownKey is read by every process before the store is killed.
func (c *cell) knownKey() string { return c.key + "-known" }

func waveKeys(c *cell) []string { return []string{c.key, c.knownKey()} }

// playWaves forces: every process has read the known key | the store is killed | all
// ask for another key | all have their answers | all ask once more | all ask for the
// known key.
func playWaves(ctx context.Context, c *cell) error {
	if err := c.learnKnown(ctx); err != nil {
		return err
	}
	if err := c.run.store.damage.kill(); err != nil {
		return err
	}
	for _, w := range []struct{ phase, key string }{{phaseHerd, c.key}, {phaseAgain, c.key}, {phaseKnown, c.knownKey()}} {
		if err := c.wave(ctx, w.phase, w.key); err != nil {
			return err
		}
	}
	return nil
}

// learnKnown makes every process read the known key, whose load takes as long as the
// others' from then on.
func (c *cell) learnKnown(ctx context.Context) error {
	if err := c.run.origin.Plan(ctx, c.knownKey(), plan{Row: rowOld}); err != nil {
		return fmt.Errorf("write the known row: %w", err)
	}
	for _, p := range c.run.fleet {
		r, err := p.do(ctx, command{Op: opGet, Key: c.knownKey(), Phase: phaseFirst})
		if err != nil {
			return err
		}
		got := r.Calls[0]
		if got.Kind != KindValue {
			return fmt.Errorf("read the known row: %s", got.Error)
		}
		c.missTook = max(c.missTook, got.Wait())
	}
	n, err := c.run.origin.Count(ctx, c.knownKey())
	if err != nil {
		return fmt.Errorf("ask the origin for its count: %w", err)
	}
	c.unmeasured = n
	return c.run.origin.Plan(ctx, c.knownKey(), plan{Row: rowOld, Wait: c.run.cfg.Load})
}

// wave lets all callers ask for a key at once.
func (c *cell) wave(ctx context.Context, phase, key string) error {
	callers := c.callers(nil)
	before, err := c.run.origin.Count(ctx, key)
	if err != nil {
		return fmt.Errorf("ask the origin for its count: %w", err)
	}
	_, err = c.run.fleet.each(ctx, func(p int) command { return command{Op: opPark, Key: key, Callers: callers[p]} })
	if err != nil {
		return err
	}
	if err := c.start(ctx, phase, callers); err != nil {
		return err
	}
	had := len(c.calls)
	if err := c.collect(ctx, callers); err != nil {
		return err
	}
	after, err := c.run.origin.Count(ctx, key)
	if err != nil {
		return fmt.Errorf("ask the origin for its count: %w", err)
	}
	w := Wave{Phase: phase, Loads: after - before, Calls: tallyOf(c.calls[had:])}
	_, w.P99MS, _ = waits(c.calls[had:])
	c.waves = append(c.waves, w)
	return nil
}
