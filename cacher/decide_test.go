// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-watchcache/watchcache/metrics"
)

// decideCase is one combination of everything that decide looks at, in words.
type decideCase struct {
	verb  string // get, list
	rv    string // unset, 0, held, gone, compacted, future
	match string // -, Exact, NotOlderThan
	limit string // -, limit
	// next is what the continue token holds: -, latest (rv -1), or as for rv.
	next  string
	scope string // prefix, key
	all   string // all, some (there is a selector)
	ready string // ready, cold, stopped
	trust string // trusted, doubtful
	// progress is whether storage reports the watch's progress.
	progress string // progress, -
	gets     string // cached, storage: where a GET without rv is served
}

// The state in which the cases are decided: the window holds 100 to 200,
// storage has compacted what is below 150.
var decideStates = readState{rv: 200, oldest: 100, compacted: 150}

var decideVersions = map[string]uint64{"unset": 0, "0": 0, "held": 180, "gone": 50, "compacted": 120, "future": 300}

// decideValues are the values of each dimension, in the order of the fields.
var decideValues = [][]string{
	{"get", "list"},
	{"unset", "0", "held", "gone", "compacted", "future"},
	{"-", "Exact", "NotOlderThan"},
	{"-", "limit"},
	{"-", "latest", "held", "gone", "compacted", "future"},
	{"prefix", "key"},
	{"all", "some"},
	{"ready", "cold", "stopped"},
	{"trusted", "doubtful"},
	{"progress", "-"},
	{"cached", "storage"},
}

func caseOf(v []string) decideCase {
	return decideCase{v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10]}
}

// allCases are all combinations that can reach decide: a GET has no list
// options; a continue token goes with no other version than "0" and is
// ignored for a single key; what is malformed is refused before.
func allCases() []decideCase {
	cases := []decideCase{}
	var grow func(prefix []string)
	grow = func(prefix []string) {
		if len(prefix) == len(decideValues) {
			c := caseOf(slices.Clone(prefix))
			listOnly := c.match != "-" || c.limit != "-" || c.next != "-" || c.scope != "key" || c.all != "all"
			switch {
			case c.verb == "get" && listOnly:
			case c.verb == "list" && c.gets == "storage":
			case c.next != "-" && (c.scope == "key" || (c.rv != "unset" && c.rv != "0")):
			default:
				cases = append(cases, c)
			}
			return
		}
		for _, value := range decideValues[len(prefix)] {
			grow(append(prefix, value))
		}
	}
	grow(nil)
	return cases
}

func (c decideCase) options() readOptions {
	o := readOptions{
		list: c.verb == "list", recursive: c.scope == "prefix", unset: c.rv == "unset", rv: decideVersions[c.rv],
		selective: c.all == "some", fromStorage: c.gets == "storage",
	}
	if c.match != "-" {
		o.match = metav1.ResourceVersionMatch(c.match)
	}
	if c.limit == "limit" {
		o.limit = 5
	}
	switch c.next {
	case "-":
	case "latest":
		o.continues, o.continueKey, o.continueRV = true, "/r/b", -1
	default:
		o.continues, o.continueKey, o.continueRV = true, "/r/b", int64(decideVersions[c.next])
	}
	return o
}

func (c decideCase) state() readState {
	s := decideStates
	s.condition = &condition{
		phase:     map[string]phase{"ready": following, "cold": starting, "stopped": stopped}[c.ready],
		integrity: map[string]integrity{"trusted": verified, "doubtful": corrupt}[c.trust],
	}
	s.reports = c.progress == "progress"
	return s
}

// decideRules are the rules for reads, as the Kubernetes API concepts have
// them ("Semantics for get and list"), KEP-2340 and KEP-4988 for what a cache
// may serve, and KEP-4568 for a cache that is not ready. The first rule that
// covers a case counts.
//
// Columns: verb, rv, match, limit, continue, scope, selector, readiness, trust,
// progress, GETs; "*" is any value, "!" all but, "|" either.
const decideRules = `
# A stopped cache answers nothing.
*    *                   *            *     *              *      *   stopped *        *        *       refuse

# Ready or not, only storage can answer: a version that the cache does not
# have any more, or may not have though storage would refuse it;
list *                   *            *     gone|compacted *      *   *       *        *        *       delegate
list gone|compacted      Exact        *     *              *      *   *       *        *        *       delegate
list gone|compacted      -            limit *              prefix *   *       *        *        *       delegate
# "exactly" without a version, which storage takes for the most recent one;
list unset|0             Exact        *     -              *      *   *       *        *        *       delegate
# any single version, while the cache is known to be wrong;
list *                   *            *     held|future    *      *   *       doubtful *        *       delegate
list held|future         Exact        *     *              *      *   *       doubtful *        *       delegate
list held|future         -            limit *              prefix *   *       doubtful *        *       delegate
# a version to come, or the most recent one, without a word on the progress of
# the cache's watch;
list *                   *            *     future|latest  *      *   *       *        -        *       delegate
list future              Exact        *     *              *      *   *       *        -        *       delegate
list future              -            limit *              prefix *   *       *        -        *       delegate
list unset               *            *     -              *      *   *       *        -        *       delegate
get  unset               *            *     *              *      *   *       *        -        *       delegate
# a GET of the most recent version, where it is configured so.
get  unset               *            *     *              *      *   *       *        *        storage delegate

# Known to be wrong: the most recent version is storage's to answer, to all who
# get one object, to a few who list.
get  unset               *            *     *              *      *   ready   doubtful *        *       delegate
list *                   *            *     latest         *      *   ready   doubtful *        *       delegate bounded
list unset               *            *     -              *      *   ready   doubtful *        *       delegate bounded

# Not ready: a GET and a page of everything go to storage, the rest comes again.
get  *                   *            *     *              *      *   cold    *        *        *       delegate
list *                   *            limit *              *      all cold    *        *        *       delegate
list *                   *            *     *              *      *   cold    *        *        *       refuse

# GET: most recent, any, not older than.
get  unset               *            *     *              *      *   ready   *        *        *       consistent
get  0                   *            *     *              *      *   ready   *        *        *       latest 0
get  *                   *            *     *              *      *   ready   *        *        *       latest rv

# LIST, continued: at the token's version, or at the most recent one.
list *                   *            *     latest         *      *   ready   *        *        *       consistent limited
list *                   *            *     !-             *      *   ready   *        *        *       continue token limited
# Most recent.
list unset               *            *     *              *      *   ready   *        *        *       consistent limited
# Any, whatever the limit.
list 0                   *            *     *              *      *   ready   *        *        *       latest 0
# Exact, also by a limit alone, as before there was a match.
list *                   Exact        *     *              *      *   ready   *        *        *       exact rv limited
list *                   -            limit *              prefix *   ready   *        *        *       exact rv limited
# Not older than.
list *                   *            *     *              *      *   ready   *        *        *       latest rv limited
`

type decideRule struct {
	line    string
	columns []string
	want    string
	used    bool
}

func parseRules(t *testing.T, text string) []*decideRule {
	var rules []*decideRule
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		require.Greater(t, len(fields), len(decideValues), "rule %q has too few columns", line)
		rule := &decideRule{line: strings.TrimSpace(line), columns: fields[:len(decideValues)]}
		rule.want = strings.Join(fields[len(decideValues):], " ")
		for i, column := range rule.columns {
			for _, value := range strings.Split(strings.TrimPrefix(column, "!"), "|") {
				if value != "*" {
					require.Contains(t, decideValues[i], value, "rule %q: column %d has no value %q", line, i+1, value)
				}
			}
		}
		rules = append(rules, rule)
	}
	return rules
}

func (r *decideRule) covers(c decideCase) bool {
	values := []string{c.verb, c.rv, c.match, c.limit, c.next, c.scope, c.all, c.ready, c.trust, c.progress, c.gets}
	for i, column := range r.columns {
		column, not := strings.CutPrefix(column, "!")
		if column != "*" && slices.Contains(strings.Split(column, "|"), values[i]) == not {
			return false
		}
	}
	return true
}

func kindCalled(name string) metrics.Decision {
	for kind := readLatest; kind <= readRefuse; kind++ {
		if kind.String() == name {
			return kind
		}
	}
	panic("the rules name a decision that does not exist: " + name)
}

// expected is the decision that a rule's last columns stand for.
func (r *decideRule) expected(c decideCase) string {
	d := decision{}
	words := strings.Fields(r.want)
	d.kind = kindCalled(words[0])
	for _, word := range words[1:] {
		switch word {
		case "rv":
			d.rv = decideVersions[c.rv]
		case "token":
			d.rv = decideVersions[c.next]
		case "bounded":
			d.needsAdmission = true
		case "limited":
			d.limited = c.limit == "limit" && (c.rv != "0" || c.match == "Exact")
		}
	}
	if c.next != "-" && d.kind != readDelegate && d.kind != readRefuse {
		d.from = "/r/b"
	}
	return fmt.Sprintf("%v %+v", d.kind, d)
}

// Every combination of what decides about a read follows the rules.
func TestDecide(t *testing.T) {
	rules := parseRules(t, decideRules)
	cases := allCases()
	for _, c := range cases {
		i := slices.IndexFunc(rules, func(r *decideRule) bool { return r.covers(c) })
		if !assert.GreaterOrEqual(t, i, 0, "%+v is covered by no rule", c) {
			continue
		}
		rules[i].used = true
		o, s := c.options(), c.state()
		d := decide(&o, &s)
		got, want := fmt.Sprintf("%v %+v", d.kind, d), rules[i].expected(c)
		assert.Equal(t, want, got, "%+v\n  rule %s", c, rules[i].line)
	}
	for _, rule := range rules {
		assert.True(t, rule.used, "the rule %q covers nothing", rule.line)
	}
	t.Logf("%d combinations, %d rules", len(cases), len(rules))
}

// The versions at the ends of what the cache holds.
func TestDecideAtTheEdges(t *testing.T) {
	ready := readState{condition: &condition{phase: following}, reports: true}
	for _, tc := range []struct {
		name                  string
		rv, oldest, compacted uint64
		want                  map[uint64]metrics.Decision
	}{
		{"window", 200, 100, 0, map[uint64]metrics.Decision{99: readDelegate, 100: readExact, 200: readExact, 201: readExact}},
		{"compacted within the window", 200, 100, 150, map[uint64]metrics.Decision{149: readDelegate, 150: readExact}},
		{"compacted below the window", 200, 100, 50, map[uint64]metrics.Decision{99: readDelegate, 100: readExact}},
		{"nothing listed yet", 0, 0, 0, map[uint64]metrics.Decision{0: readDelegate, 1: readExact}},
		{"compacted beyond the cache", 200, 100, 250, map[uint64]metrics.Decision{200: readDelegate, 249: readDelegate, 250: readExact}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := ready
			s.rv, s.oldest, s.compacted = tc.rv, tc.oldest, tc.compacted
			for rv, want := range tc.want {
				o := readOptions{list: true, recursive: true, rv: rv, match: metav1.ResourceVersionMatchExact}
				assert.Equal(t, want, decide(&o, &s).kind, "exactly %d", rv)
			}
		})
	}
}
