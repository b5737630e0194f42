// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"bytes"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rule is a difference that COMPATIBILITY.md has a row of.
type rule struct {
	row string // how the row begins
	met func(*comparison) bool
	// directed: a program meets the rule by chance alone; TestOptions does so on purpose.
	directed bool
}

var rules = []rule{
	{row: "a resourceVersion above the storage's own", met: func(c *comparison) bool {
		return c.watches() && c.run.ahead(c.request) && (c.statuses(http.StatusGone, 0) || c.statuses(http.StatusGatewayTimeout, 0))
	}},
	{row: "`timeoutSeconds` that is negative or does not fit", met: func(c *comparison) bool {
		return c.watches() && c.statuses(http.StatusGatewayTimeout, http.StatusOK) && c.request.query.Has("timeoutSeconds")
	}},
	{row: "GET or WATCH with a malformed resourceVersion", met: func(c *comparison) bool { return c.statuses(http.StatusBadRequest, http.StatusInternalServerError) }},
	{row: "`Accept: application/vnd.kubernetes.protobuf` for objects of types without protobuf", met: func(c *comparison) bool {
		return c.pair == nil && strings.Contains(c.request.accept, asProtobuf) && !strings.Contains(c.request.accept, "as=") &&
			contentType(c.answers[ours]) == asJSON && contentType(c.answers[shipped]) == asProtobuf
	}},
	{row: "a LIST of all namespaces whose field selector requires `metadata.namespace`, in pages", met: func(c *comparison) bool {
		return c.statuses(http.StatusOK, http.StatusOK) && c.tokens[shipped] != "" && c.request.narrowed()
	}},
	{row: "LIST of one key with a limit and no match", met: func(c *comparison) bool {
		return c.oneKey() && c.request.query.Has("limit") && !c.request.query.Has("resourceVersionMatch") && c.version() != ""
	}},
	{row: "LIST of one key (not recursive) at an exact resourceVersion", met: func(c *comparison) bool {
		return c.oneKey() && c.request.query.Get("resourceVersionMatch") == "Exact" && (c.statuses(http.StatusOK, 0) || c.statuses(http.StatusNotAcceptable, 0) || c.run.ahead(c.request))
	}},
	{row: "GET with resourceVersion \"\" of an object that etcd has, and that can't be decrypted", met: func(c *comparison) bool {
		dry := c.request.query.Has("dryRun") && status(c.answers[shipped]) == http.StatusCreated
		return c.run.lost && c.pair == nil && c.version() == "" && status(c.answers[ours]) < 500 && (dry || c.statuses(0, http.StatusInternalServerError))
	}},
	{row: "indexes", met: func(c *comparison) bool {
		if c.pair != nil || !c.statuses(http.StatusOK, http.StatusOK) || c.watches() {
			return false
		}
		a, b := decodeList(c.answers[ours]), decodeList(c.answers[shipped])
		return encode(items(a)) == encode(items(b)) && at(a, "metadata", "continue") == "" && c.request.query.Has("limit")
	}},
	{row: "a watch resumes from before the server's start", met: func(c *comparison) bool {
		return c.pair != nil && c.states() == "" && (c.before(ours) && (c.pair.step.resource == pandas || c.run.compacted > 0) || c.before(shipped) && c.fewer410s())
	}},
	{directed: true, row: "a watch as a Table", met: func(c *comparison) bool {
		if c.pair == nil || !strings.Contains(c.request.accept, "as=Table") {
			return false
		}
		a, b := c.pair.followers[ours].since, c.pair.followers[shipped].since
		return c.states() == "" && slices.Equal(a.events, b.events) && a.gone == b.gone && a.initial == b.initial && a.columns <= a.opened && b.columns > a.columns
	}},
	{row: "another server deletes such an object", met: func(c *comparison) bool { return c.pair != nil && c.run.disturbed && c.fewer410s() && c.states() == "" }},
	{row: "an object that can't be decoded", met: func(c *comparison) bool {
		return c.run.lost && c.run.disturbed && c.pair == nil && slices.Contains([]int{http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusGatewayTimeout}, status(c.answers[shipped]))
	}},
}

// unasked are the other rows about requests, and why no request of a step shows them.
var unasked = map[string][]string{
	"needs more load, or time, than a step has": {"a watcher whose channel stays full", "a client that does not read its initial events", "a watch falls behind the window",
		"a watch resumes from below the window", "consistent reads at the same time", "GET at a version that the cache does not reach in time",
		"lists that the server encodes as a whole"},
	"is longer than what a step sends, and in integration/hostile": {"selectors of a LIST or WATCH with more than 10,000 requirements"},
	"needs a fault of etcd, as in integration/faults": {"a relist of the cache", "the storage's watch hangs", "a consistent LIST that can't become fresh", "waiting for freshness",
		"a read that only etcd can answer", "a watch from the most recent version", "the consistency check", "a cache that differs from etcd"},
	"shows inside the process only": {"initial events", "events replayed", "`GetObjectKind`", "trigger functions", "a wrong list type", "items of an unstructured LIST", "a namespaced request"},
	"changes traces, metrics, moments or compressed bytes; the content is compared": {"a server shuts down", "GET with resourceVersion \"\"", "a LIST as a Table", "a LIST of custom resources",
		"a LIST that is compressed", "a watch that is compressed"},
	"refused by both with 400, in TestOptions":                                     {"NotOlderThan without a version", "a continue token with a match"},
	"needs what API servers don't do":                                              {"a transaction of several objects", "CBOR"},
	"steps wait until both sides serve":                                            {"a cold cache"},
	"of writes the dry run is asked of both, which reads":                          {"DELETE or UPDATE of an object that etcd has, and that can't be decrypted"},
	"initial events that may be of any age are compared by the states that follow": {"resourceVersion \"\" without sendInitialEvents"},
}

// Each row of COMPATIBILITY.md about requests is a rule, or is not asked for a reason.
func TestRowsAreRules(t *testing.T) {
	page, err := os.ReadFile("../../COMPATIBILITY.md")
	require.NoError(t, err)
	_, page, _ = bytes.Cut(page, []byte("## WATCH"))
	page, _, _ = bytes.Cut(page, []byte("## Configuration"))
	names := slices.Concat(slices.Collect(maps.Values(unasked))...)
	for _, rule := range rules {
		names = append(names, rule.row)
	}
	for _, name := range names {
		assert.Contains(t, string(page), "\n| "+name, "no row begins so")
	}
	for row := range strings.Lines(string(page)) {
		cell, _, table := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
		if table && cell != "" && !strings.HasPrefix(row, "| |") && !strings.HasPrefix(row, "|---") {
			assert.True(t, slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(cell, name) }), "no rule: %s", cell)
		}
	}
}

func (c *comparison) version() string { return c.request.query.Get("resourceVersion") }

func (c *comparison) watches() bool { return c.request.query.Has("watch") && c.pair == nil }

// narrowed reports whether the registry narrows the LIST of all namespaces to one.
func (q *request) narrowed() bool {
	return strings.Contains(q.query.Get("fieldSelector"), "metadata.namespace=") && !strings.Contains(q.path, "/namespaces/")
}

// oneKey reports whether the registry narrows the LIST to one object.
func (c *comparison) oneKey() bool {
	fields := c.request.query.Get("fieldSelector")
	return c.pair == nil && !c.watches() && strings.HasPrefix(fields, "metadata.name=") && strings.Contains(c.request.path, "/namespaces/")
}

// fewer410s reports whether the client of the shipped cacher had to list more often.
func (c *comparison) fewer410s() bool {
	return c.pair.followers[ours].gone < c.pair.followers[shipped].gone
}

// statuses reports whether the answers have these; 0 is any.
func (c *comparison) statuses(of, by int) bool {
	return c.pair == nil && (of == 0 || status(c.answers[ours]) == of) && (by == 0 || status(c.answers[shipped]) == by)
}

func contentType(a *answer) string {
	if a == nil {
		return ""
	}
	return a.header.Get("Content-Type")
}

func status(a *answer) int {
	if a == nil {
		return http.StatusOK
	}
	return a.status
}
