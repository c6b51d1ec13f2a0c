package lab

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestDefaultsAreValid(t *testing.T) {
	cfg := Defaults()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	if cfg.Processes != 3 || cfg.Callers != 12 || cfg.Load != 250*time.Millisecond {
		t.Errorf("the README shows 3 processes, 12 callers, 250 ms; the defaults are %d, %d, %v", cfg.Processes, cfg.Callers, cfg.Load)
	}
}

func TestValidateNamesTheFlag(t *testing.T) {
	for _, tt := range []struct {
		name, flag, says string
		change           func(*Config)
	}{
		{"no process", "processes", "1 to 64", func(c *Config) { c.Processes = 0 }},
		{"too many processes", "processes", "1 to 64", func(c *Config) { c.Processes, c.Callers = 65, 65 }},
		{"fewer callers than processes", "callers", "--processes 3", func(c *Config) { c.Callers = 2 }},
		{"too many callers", "callers", "10000", func(c *Config) { c.Callers = 10_001 }},
		{"no load", "load", "1ms", func(c *Config) { c.Load = 0 }},
		{"negative load", "load", "1ms", func(c *Config) { c.Load = -time.Second }},
		{"endless load", "load", "1h", func(c *Config) { c.Load = 2 * time.Hour }},
		{"short lease", "lease", "20ms", func(c *Config) { c.Lease = time.Millisecond }},
		{"timeout below a load", "timeout", "slowest", func(c *Config) { c.Timeout = time.Second }},
		{"endless timeout", "timeout", "1h", func(c *Config) { c.Timeout = 2 * time.Hour }},
		{"unknown scenario", "scenario", "S1, S2, S3, S4, S5, S6, S7, release, killed, frozen, cold, commit", func(c *Config) { c.Scenarios = []string{"S1", "S9"} }},
		{"no scenario", "scenario", "known", func(c *Config) { c.Scenarios = nil }},
		{"unknown mode", "mode", "naive, local, lock, onefill", func(c *Config) { c.Modes = []string{"quick"} }},
		{"no mode", "mode", "known", func(c *Config) { c.Modes = nil }},
		{"unknown store", "store", "redis, memcached", func(c *Config) { c.Store = "etcd" }},
		{"redis and memcached", "memcached", "--redis", func(c *Config) { c.Redis, c.Memcached = "redis://x", "x:1" }},
		{"redis for another store", "redis", "--store memcached", func(c *Config) { c.Store, c.Redis = StoreMemcached, "redis://x" }},
		{"memcached for another store", "memcached", "--store redis", func(c *Config) { c.Memcached = "x:1" }},
		{"embedded memcached", "embedded", "--memcached", func(c *Config) { c.Store, c.Embedded = StoreMemcached, true }},
		{"half seconds on memcached", "lease", "whole seconds", func(c *Config) { c.Store, c.Lease = StoreMemcached, 2500*time.Millisecond }},
		{"one second on memcached", "lease", "2s at least", func(c *Config) { c.Store, c.Lease = StoreMemcached, time.Second }},
		{"embedded and redis", "embedded", "--redis", func(c *Config) { c.Embedded, c.Redis = true, "redis://x" }},
		{"embedded and postgres", "embedded", "--postgres", func(c *Config) { c.Embedded, c.Postgres = true, "postgres://x" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Defaults()
			tt.change(&cfg)
			var input *InputError
			if err := cfg.Validate(); !errors.As(err, &input) {
				t.Fatalf("accepted, or not as bad input: %v", err)
			}
			if input.Flag != tt.flag || !strings.Contains(input.Error(), tt.says) {
				t.Errorf("got %q; expected --%s and %q", input, tt.flag, tt.says)
			}
		})
	}
}

func TestSelect(t *testing.T) {
	for _, tt := range []struct{ given, want string }{
		{"S5,S1", "S1 S5"},
		{"s1, RELEASE,s1", "S1 release"},
		{"S1,S9", "S1 S9"}, // for Validate to name
		{"", ""},
	} {
		got := strings.TrimSpace(strings.Join(Select(strings.Split(tt.given, ","), ScenarioIDs()), " "))
		if got != tt.want {
			t.Errorf("Select(%q) = %q, expected %q", tt.given, got, tt.want)
		}
	}
}

func TestCallersAreSpreadEvenly(t *testing.T) {
	cfg := Config{Processes: 3, Callers: 8}
	var all []int
	for p := range cfg.Processes {
		ids := cfg.callersOf(p)
		if len(ids) < 2 || len(ids) > 3 {
			t.Errorf("process %d has %d of 8 callers", p, len(ids))
		}
		all = append(all, ids...)
	}
	slices.Sort(all)
	if !slices.Equal(all, []int{0, 1, 2, 3, 4, 5, 6, 7}) {
		t.Errorf("callers are %v", all)
	}
	if !slices.Contains(cfg.callersOf(0), firstCaller) {
		t.Error("the first caller is not in process 0, where S6 cancels it")
	}
}
