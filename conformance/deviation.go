// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// childOf names the one clause, by its test's full name, that a process was
// started for.
const childOf = "WATCHCACHE_CONFORMANCE_CLAUSE"

func isChild(t *testing.T) bool { return os.Getenv(childOf) == t.Name() }

// announce tells a parent that its clause has begun or that it held: what else
// fails in the process says nothing about it.
func announce(t *testing.T, what string) {
	if isChild(t) {
		fmt.Println(t.Name() + what)
	}
}

const (
	begun = " is judged by conformance"
	held  = " holds, conformance says"
)

// racesTried is how often a race is run that is declared to be lost.
const racesTried = 5

// deviates runs the clause in a process of its own and fails if it holds
// there. Suites of k8s.io/apiserver take a *testing.T and end it, or never
// end: only a process can be looked at from outside.
func (r *runner) deviates(t *testing.T, name string, c clause, b Backend) {
	t.Helper()
	tries := 1
	if c.races {
		tries = racesTried
	}
	var output string
	var failed bool
	var err error
	for ; tries > 0 && !failed && err == nil; tries-- {
		output, failed, err = judgeInChild(t, 2*b.clauseTimeout()+time.Minute)
	}
	reason := b.Deviations[name]
	switch {
	case err != nil:
		t.Errorf("%s is declared as a deviation, and could not be judged: %v\n%s", name, err, output)
	case !failed:
		t.Errorf("%s is declared as a deviation (%s), and holds: remove the entry. The rule: %s.", name, reason, c.rule)
	default:
		t.Logf("%s deviates as declared (%s):\n%s", name, reason, output)
		r.note(&r.mu.deviate, name, reason)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.mu.output[name] = output
	}
}

// judgeInChild runs the current subtest in another process of this test binary.
// A process that ends before the clause is done, for it hung or panicked,
// counts as failed. judgeInChild returns an error if the clause was not
// reached.
func judgeInChild(t *testing.T, bound time.Duration) (output string, failed bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	exe, err := os.Executable()
	if err != nil {
		return "", false, err
	}
	args := []string{"-test.run=" + pattern(t.Name()), "-test.v", "-test.timeout=" + bound.String()}
	for _, arg := range os.Args[1:] {
		if !strings.HasPrefix(arg, "-test.") {
			args = append(args, arg)
		}
	}
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Env = append(os.Environ(), childOf+"="+t.Name())
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	output = quoted(string(out))
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit):
		return output, false, err
	case !strings.Contains(string(out), t.Name()+begun):
		return output, false, errors.New("the process did not get as far as the clause")
	}
	return output, !strings.Contains(string(out), t.Name()+held), nil
}

// pattern is what -test.run takes for exactly this test.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

// quoted keeps the output of another process from being taken for this one's.
func quoted(output string) string {
	return "| " + strings.ReplaceAll(strings.TrimSuffix(output, "\n"), "\n", "\n| ")
}
