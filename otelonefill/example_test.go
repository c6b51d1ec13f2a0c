package otelonefill_test

import (
	"context"
	"fmt"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/otelonefill"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// A request waits for a load: both are in its trace, and the query is a child of the load.
func Example() {
	recorder := tracetest.NewSpanRecorder() // a program has an exporter here
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	tracer := provider.Tracer("example")

	tel, err := otelonefill.New(otelonefill.Options{TracerProvider: provider})
	if err != nil {
		panic(err)
	}
	users, err := onefill.New(onefill.Options[string, string]{
		Name:     "users",
		Observer: tel,
		Load: func(ctx context.Context, _ string) (string, error) {
			_, span := tracer.Start(ctx, "SELECT") // as a traced database client does
			defer span.End()
			return "Ada", nil
		},
	})
	if err != nil {
		panic(err)
	}
	if err := tel.Add("users", users); err != nil {
		panic(err)
	}

	ctx, request := tracer.Start(context.Background(), "GET /users/ada")
	if _, err := users.Get(ctx, "ada"); err != nil {
		fmt.Println(err)
	}
	if _, err := users.Get(ctx, "ada"); err != nil { // a hit, which has no span
		fmt.Println(err)
	}
	request.End()
	if err := users.Close(); err != nil {
		fmt.Println(err)
	}

	names := map[string]string{}
	for _, s := range recorder.Ended() {
		names[s.SpanContext().SpanID().String()] = s.Name()
	}
	for _, s := range recorder.Ended() {
		if s.Name() != "GET /users/ada" {
			fmt.Println(s.Name(), "in", names[s.Parent().SpanID().String()])
		}
	}
	// Unordered output:
	// SELECT in load users
	// load users in GET /users/ada
	// wait users in GET /users/ada
}
