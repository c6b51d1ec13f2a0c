package redisstore

import (
	"crypto/sha1"
	_ "embed" // the scripts
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

var (
	//go:embed scripts/newer.lua
	newerLua string
	//go:embed scripts/numbers.lua
	numbersLua string
	//go:embed scripts/behind.lua
	behindLua string
	//go:embed scripts/acquire.lua
	acquireLua string
	//go:embed scripts/fill.lua
	fillLua string
	//go:embed scripts/fail.lua
	failLua string
	//go:embed scripts/renew.lua
	renewLua string
	//go:embed scripts/release.lua
	releaseLua string
	//go:embed scripts/set.lua
	setLua string
	//go:embed scripts/invalidate.lua
	invalidateLua string
	//go:embed scripts/expire.lua
	expireLua string
	//go:embed scripts/confirm.lua
	confirmLua string
	//go:embed scripts/epoch.lua
	epochLua string
	//go:embed scripts/generations.lua
	generationsLua string
	//go:embed scripts/void.lua
	voidLua string
)

var (
	acquireScript    = newScript(acquireLua)
	fillScript       = newScript(fillLua)
	failScript       = newScript(failLua)
	renewScript      = newScript(renewLua)
	releaseScript    = newScript(releaseLua)
	setScript        = newScript(setLua)
	invalidateScript = newScript(invalidateLua)
	expireScript     = newScript(expireLua)
	confirmScript    = newScript(confirmLua)
	epochScript      = newScript(epochLua)
	generationScript = newScript(generationsLua)
	voidScript       = newScript(voidLua)
	// probeScript finds out at Attach whether scripts may be run and our keys be
	// read by them. It changes nothing.
	probeScript = newScript("redis.pcall('GET', KEYS[1])\nreturn 1\n")
)

// script is a Lua script that the server may know by its hash.
type script struct{ text, sha string }

func newScript(text string) *script {
	text = strings.Replace(text, "--include newer\n", newerLua, 1)
	text = strings.Replace(text, "--include numbers\n", numbersLua, 1)
	text = strings.Replace(text, "--include behind\n", behindLua, 1)
	sum := sha1.Sum([]byte(text)) // the hash that Redis names scripts by
	return &script{text: text, sha: hex.EncodeToString(sum[:])}
}

// call is one run of a script.
type call struct {
	script *script
	keys   []string
	args   []string
}

// byHash and byText build the two commands that run a script. They are built as
// arbitrary commands, not by rueidis' own names, so that rueidis never repeats
// them: after an error the caller decides.
func (c call) byHash(b rueidis.Builder) rueidis.Completed {
	return c.build(b, "EVALSHA", c.script.sha)
}

func (c call) byText(b rueidis.Builder) rueidis.Completed {
	return c.build(b, "EVAL", c.script.text)
}

func (c call) build(b rueidis.Builder, command, which string) rueidis.Completed {
	return b.Arbitrary(command, which, strconv.Itoa(len(c.keys))).Keys(c.keys...).Args(c.args...).Build()
}

// unknownScript says that the server has lost the script: it was restarted, has
// failed over, or SCRIPT FLUSH was sent.
func unknownScript(err error) bool {
	refusal, ok := rueidis.IsRedisErr(err)
	return ok && refusal.IsNoScript()
}
