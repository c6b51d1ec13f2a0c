package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/onefill/onefill"
)

// api is the service's HTTP.
type api struct {
	users *users
	cache *onefill.Cache[int64, user]
}

func (a *api) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /users/{id}", a.get)
	mux.HandleFunc("PUT /users/{id}/name", a.rename)
	return mux
}

func (a *api) get(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		http.Error(w, "an id is a number", http.StatusBadRequest)
		return
	}
	u, err := a.cache.Get(r.Context(), id)
	if err != nil {
		fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(u); err != nil {
		slog.Debug("a client has gone", "err", err)
	}
}

func (a *api) rename(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	name, readErr := io.ReadAll(http.MaxBytesReader(w, r.Body, 100))
	if err != nil || readErr != nil || strings.TrimSpace(string(name)) == "" {
		http.Error(w, "an id is a number, and a name has 1 to 100 bytes", http.StatusBadRequest)
		return
	}
	if err := a.users.rename(r.Context(), id, strings.TrimSpace(string(name))); err != nil {
		fail(w, r, err)
		return
	}
	a.forget(r.Context(), id)
	w.WriteHeader(http.StatusNoContent)
}

// forget removes a user who has been changed, so that who is told that the change is done reads it. It may fail
// or never be reached, and then the job does it a moment later: the change is committed, so the answer is the
// same. It waits for a second at most, also for a client that has gone.
func (a *api) forget(ctx context.Context, id int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := a.cache.Invalidate(ctx, id); err != nil {
		slog.Warn("the job will have to invalidate", "user", id, "err", err)
	}
}

// fail turns an error into a status. Which ones there are is in the documentation of package onefill.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, onefill.ErrNotFound):
		http.Error(w, "there is no such user", http.StatusNotFound)
		return
	case r.Context().Err() != nil: // the client has gone, or a deadline has ended: to write nothing would be 200
		http.Error(w, "too late", http.StatusServiceUnavailable)
		return
	case errors.Is(err, onefill.ErrWaitTimeout), errors.Is(err, onefill.ErrOriginBusy), errors.Is(err, onefill.ErrClosed):
		w.Header().Set("Retry-After", "1")
		http.Error(w, "busy, try again", http.StatusServiceUnavailable)
	default:
		http.Error(w, "failed", http.StatusInternalServerError)
	}
	slog.Error("a request failed", "path", r.URL.Path, "err", err)
}
