package cli

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
)

// withoutSecret refuses a URL on the command line that holds a password: everybody on the
// machine can read it there, and the shell keeps it. The environment may hold one.
func withoutSecret(flags *pflag.FlagSet, name string) error {
	f := flags.Lookup(name)
	if f.Annotations[fromEnv] != nil || !holdsPassword(f.Value.String()) {
		return nil
	}
	return &exitError{exitInput, fmt.Errorf("--%s: a password on the command line can be read by everybody on this machine; give the URL by the environment, in %s", name, envName(name))}
}

var (
	passwordInURL   = regexp.MustCompile(`://[^@]*:[^@]*@`)
	passwordSetting = regexp.MustCompile(`(?i)password\s*=`) // host=... password=..., and ?password=...
)

func holdsPassword(s string) bool {
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" {
		return passwordInURL.MatchString(s) || passwordSetting.MatchString(s)
	}
	password, _ := u.User.Password()
	return password != "" || strings.Contains(strings.ToLower(u.RawQuery), "password")
}
