package pgqueue

import (
	"embed"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed sql/*.sql
var sqlFiles embed.FS

// statements are the texts in sql/ with the names of the schema put in.
type statements struct {
	enqueue, merge, notify          string
	claim, floor                    string
	ack, ackSame                    string
	extend, nack, dead              string
	listDead, replayDead, dropDead  string
	stats, check, version           string
	once, forgetOnce, forgetLetters string
}

func newStatements(schema string) statements {
	read := func(name string) string { return inSchema(sqlText(name), schema) }
	of := func(name, fences string) string { return strings.Replace(read(name), "{fences}", sqlText(fences), 1) }
	return statements{
		enqueue: read("enqueue"), merge: read("merge"), notify: read("notify"),
		claim: read("claim"), floor: read("floor"),
		ack: of("ack", "fences"), ackSame: of("ack", "same_fence"),
		extend: of("extend", "fences"), nack: of("nack", "fences"), dead: of("dead", "fences"),
		listDead: read("list_dead"), replayDead: read("replay_dead"), dropDead: read("drop_dead"),
		stats: read("stats"), check: read("check"), version: read("version"),
		once: read("once"), forgetOnce: read("forget_once"), forgetLetters: read("forget_letters"),
	}
}

// sqlText is a file without the comment at its head.
func sqlText(name string) string {
	text, err := sqlFiles.ReadFile("sql/" + name + ".sql")
	if err != nil {
		panic(err) // it is embedded
	}
	return strings.TrimSpace(withoutComments(string(text)))
}

func withoutComments(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// inSchema puts the schema's name in: as an identifier, and as part of the literal that
// nextval takes.
func inSchema(text, schema string) string {
	name := pgx.Identifier{schema}.Sanitize()
	literal := "'" + strings.ReplaceAll(name, "'", "''") + ".jobs_id_seq'"
	return strings.NewReplacer("{schema}", name, "{sequence}", literal).Replace(text)
}
