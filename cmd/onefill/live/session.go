package live

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// session is what one open page drives. It ends with the page's stream.
type session struct {
	id      string
	begin   time.Time
	backend backend
	arms    []*arm // of all modes; those that do not play have no readers
	life    context.Context
	end     context.CancelFunc

	// turn is taken by whoever changes what plays: a herd, new settings, the end. A herd
	// has it for as long as it lasts.
	turn chan struct{}
	herd sync.WaitGroup

	// caches guards the readers of the arms against being looked at while they are
	// replaced. It is taken after turn, and held while caches open and close.
	caches sync.RWMutex

	storeMu sync.Mutex // held while the store is stopped and started

	mu       sync.Mutex // guards what follows; nothing waits under it
	settings Settings
	state    state
}

// state is what the buttons have done.
type state struct {
	StoreDown bool `json:"store_down"`
	Paused    bool `json:"paused"`
	Failing   bool `json:"failing"`
	Herd      bool `json:"herd"`  // one runs
	Herds     int  `json:"herds"` // that have begun
}

// conflictError is what cannot be done now.
type conflictError struct{ text string }

func (e *conflictError) Error() string { return e.text }

// newSession opens the caches and starts the traffic. The backend is the session's from here.
func newSession(ctx context.Context, id string, b backend, s Settings) (*session, error) {
	se := &session{id: id, begin: time.Now(), backend: b, turn: make(chan struct{}, 1)}
	se.life, se.end = context.WithCancel(context.WithoutCancel(ctx))
	for _, mode := range Modes {
		se.arms = append(se.arms, newArm(mode, b, se.begin))
	}
	if err := se.apply(ctx, s); err != nil {
		se.close()
		return nil, err
	}
	return se, nil
}

// take waits for the turn.
func (se *session) take(ctx context.Context) error {
	select {
	case se.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-se.life.Done():
		return errEnded
	}
	if se.life.Err() != nil {
		se.give()
		return errEnded
	}
	return nil
}

func (se *session) give() { <-se.turn }

var errEnded = errors.New("this page's session has ended")

// apply sets all settings; those of caches make new caches. A herd that runs is
// waited for.
func (se *session) apply(ctx context.Context, s Settings) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if err := se.take(ctx); err != nil {
		return err
	}
	defer se.give()
	se.mu.Lock()
	before, down := se.settings, se.state.StoreDown
	se.mu.Unlock()
	if before.needsCaches(s) {
		if down {
			return &conflictError{"the store is down, and other caches could not reach it: restart it first"}
		}
		if err := se.reopen(ctx, s); err != nil {
			return err
		}
	}
	se.mu.Lock()
	se.settings = s
	se.mu.Unlock()
	for _, a := range se.playing() {
		a.database.set(s.load(), s.FailPct)
		a.halt()
	}
	se.resume()
	return nil
}

// reopen makes new caches for the modes that play. After an error there are none, and the
// next settings are tried from the beginning.
func (se *session) reopen(ctx context.Context, s Settings) error {
	se.caches.Lock()
	defer se.caches.Unlock()
	se.closeCaches()
	for _, a := range se.arms {
		if !slices.Contains(s.Modes, a.mode) {
			continue
		}
		if err := a.open(ctx, s); err != nil {
			se.closeCaches()
			se.mu.Lock()
			defer se.mu.Unlock()
			se.settings = Settings{}
			return fmt.Errorf("open the caches of mode %s: %w", a.mode, err)
		}
	}
	return nil
}

// closeCaches closes all. se.caches is held.
func (se *session) closeCaches() {
	var all sync.WaitGroup
	for _, a := range se.arms {
		all.Go(a.close)
	}
	all.Wait()
}

// playing are the arms that have caches.
func (se *session) playing() []*arm {
	var some []*arm
	for _, a := range se.arms {
		if len(a.readers) > 0 {
			some = append(some, a)
		}
	}
	return some
}

// resume starts the traffic, if there is to be any. The turn is the caller's.
func (se *session) resume() {
	se.mu.Lock()
	s := se.settings
	se.mu.Unlock()
	if !s.Traffic || se.life.Err() != nil {
		return
	}
	for _, a := range se.playing() {
		a.traffic(se.life, s.Callers)
	}
}

// Actions are what the page's buttons do.
var actions = map[string]func(*session, context.Context) error{
	"herd":    func(se *session, _ context.Context) error { return se.send() },
	"expire":  (*session).expire,
	"pause":   func(se *session, _ context.Context) error { return se.pause(true) },
	"resume":  func(se *session, _ context.Context) error { return se.pause(false) },
	"fail":    func(se *session, _ context.Context) error { return se.fail(true) },
	"heal":    func(se *session, _ context.Context) error { return se.fail(false) },
	"kill":    (*session).kill,
	"restart": (*session).restart,
}

// send begins a herd and returns.
func (se *session) send() error {
	select {
	case se.turn <- struct{}{}:
	default:
		return &conflictError{"a herd runs, or settings are being changed: try again when that is over"}
	}
	if se.life.Err() != nil {
		se.give()
		return errEnded
	}
	se.mu.Lock()
	se.state.Herd = true
	se.state.Herds++
	callers := se.settings.Callers
	se.mu.Unlock()
	se.herd.Go(func() {
		defer se.over()
		var all sync.WaitGroup
		for _, a := range se.playing() {
			all.Go(a.halt)
		}
		all.Wait()
		for _, a := range se.playing() {
			all.Go(func() { a.play(se.life, callers) })
		}
		all.Wait()
		se.resume()
	})
	return nil
}

// over ends a herd. Who is told so may send the next at once, so the turn is given in the same moment.
func (se *session) over() {
	se.mu.Lock()
	defer se.mu.Unlock()
	se.state.Herd = false
	se.give()
}

// expire makes the value old in all modes, as if its TTL had ended.
func (se *session) expire(ctx context.Context) error {
	se.caches.RLock()
	defer se.caches.RUnlock()
	var mu sync.Mutex
	var errs []error
	var all sync.WaitGroup
	for _, a := range se.playing() {
		all.Go(func() {
			err := a.expire(ctx)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	all.Wait()
	if errors.Join(errs...) != nil {
		return &conflictError{"the key could not be expired in the store, which is down: it is old in one process only"}
	}
	return nil
}

// toggle does something to the databases of all modes, playing or not, and notes it.
func (se *session) toggle(do func(*database, bool), noted func(*state) *bool, yes bool) error {
	for _, a := range se.arms {
		do(a.database, yes)
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	*noted(&se.state) = yes
	return nil
}

func (se *session) pause(yes bool) error {
	return se.toggle((*database).pause, func(s *state) *bool { return &s.Paused }, yes)
}

func (se *session) fail(yes bool) error {
	return se.toggle((*database).fail, func(s *state) *bool { return &s.Failing }, yes)
}

func (se *session) kill(context.Context) error {
	return se.stopStore(true, func() error { return se.backend.kill() })
}

func (se *session) restart(ctx context.Context) error {
	return se.stopStore(false, func() error { return se.backend.restart(ctx) })
}

func (se *session) stopStore(down bool, act func() error) error {
	se.storeMu.Lock()
	defer se.storeMu.Unlock()
	se.mu.Lock()
	already := se.state.StoreDown == down
	se.mu.Unlock()
	if already {
		return nil
	}
	if se.life.Err() != nil {
		return errEnded
	}
	if err := act(); err != nil {
		if errors.Is(err, errNotOurs) {
			return &conflictError{err.Error()}
		}
		return err
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	se.state.StoreDown = down
	return nil
}

// armFrame is one mode in a frame.
type armFrame struct {
	look
	LatestHerd *herd `json:"herd,omitempty"`
}

// frame is what the page is told, ten times a second.
type frame struct {
	T     float64             `json:"t"` // milliseconds of the session
	State state               `json:"state"`
	Arms  map[string]armFrame `json:"arms"`
}

func (se *session) frame() frame {
	se.mu.Lock()
	f := frame{State: se.state, Arms: make(map[string]armFrame)}
	se.mu.Unlock()
	se.caches.RLock()
	defer se.caches.RUnlock()
	for _, a := range se.playing() {
		f.Arms[a.mode] = a.look()
	}
	f.T = float64(time.Since(se.begin).Microseconds()) / 1000
	return f
}

// close ends everything that the session has started, and returns when it has ended.
func (se *session) close() {
	se.end()
	se.turn <- struct{}{} // a herd that runs ends with the session's life
	defer se.give()
	se.herd.Wait()
	se.caches.Lock()
	defer se.caches.Unlock()
	se.closeCaches()
	se.storeMu.Lock()
	defer se.storeMu.Unlock()
	se.backend.close()
}
