// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// follower is a client that lists and watches on one side, as an informer does: when its
// watch ends it resumes, and on a 410 it lists again.
type follower struct {
	side    *side
	request *request // of the first watch
	stop    context.CancelFunc
	decoder *json.Decoder // nil between two watches
	pending []event
	last    string            // the version to resume from
	state   map[string]string // objects by key
	since                     // the last look
}

// since is what a follower got since a look.
type since struct {
	events               []string
	columns              int // how many events had definitions of columns
	initial              int // how many bookmarks have ended the initial events
	gone, failed, opened int // 410s, other errors, watches
	relisted             bool
}

// event is one of a watch.
type event struct {
	Type   string `json:"type"`
	Object object `json:"object"`
}

// open begins a watch with the query. It returns the answer if the watch is refused.
func (f *follower) open(r *run, q *request) *answer {
	ctx, stop := context.WithCancel(r.ctx)
	timer := time.AfterFunc(patience, stop)
	response, err := f.side.send(ctx, q)
	require.NoError(r, err)
	f.stop = func() { stop(); _ = response.Body.Close() }
	if response.StatusCode != http.StatusOK {
		defer f.stop()
		read, err := io.ReadAll(response.Body)
		require.NoError(r, err)
		return &answer{response.StatusCode, response.Header, read}
	}
	timer.Stop()
	f.decoder, f.pending = json.NewDecoder(response.Body), nil
	f.decoder.UseNumber()
	f.opened++
	return nil
}

func (f *follower) close() {
	if f.decoder != nil {
		f.stop()
		f.decoder = nil
	}
}

// next reads an event.
func (f *follower) next() (event, error) {
	for len(f.pending) == 0 {
		var e event
		if err := f.decoder.Decode(&e); err != nil {
			return e, err
		}
		f.pending = []event{e}
		if change := f.side.tamper.event; change != nil {
			f.pending = change(e)
		}
	}
	e := f.pending[0]
	f.pending = f.pending[1:]
	return e, nil
}

// until reads until an object has the mark.
func (f *follower) until(r *run, mark string) {
	ctx, cancel := context.WithTimeout(r.ctx, patience/4)
	defer cancel()
	for found := false; !found; {
		require.NoError(r, ctx.Err(), "%s: no event with the mark %s for %s; so far %q", f.side.name, mark, f.request, f.events)
		if f.decoder == nil {
			f.resume(r)
			found = slices.ContainsFunc(slices.Collect(maps.Values(f.state)), func(o string) bool { return marked(o, mark) })
			continue
		}
		undo := context.AfterFunc(ctx, f.stop)
		e, err := f.next()
		undo()
		if err != nil {
			f.close()
		} else {
			found = f.take(e, mark)
		}
	}
}

// take takes an event and reports whether it has the mark.
func (f *follower) take(e event, mark string) bool {
	of := metadata(e.Object)
	version := at(of, "resourceVersion")
	if at(e.Object, "columnDefinitions") != "" { // the first event of a stream, which may be a bookmark
		f.columns++
	}
	switch e.Type {
	case "ERROR":
		f.events = append(f.events, "ERROR "+normal(encode(e.Object), false))
		switch at(e.Object, "code") {
		case "410":
			f.gone++
			f.last = ""
		case "504":
			f.last = ""
			fallthrough
		default:
			f.failed++
		}
		f.close()
		return false
	case "BOOKMARK":
		if at(of, "annotations", "k8s.io/initial-events-end") == "true" {
			f.initial++
		}
		f.last = version
		return false
	}
	delete(e.Object, "columnDefinitions")
	f.last = version
	f.events = append(f.events, e.Type+" "+normal(encode(e.Object), false))
	if f.state[keyOf(of)] = content(e.Object); e.Type == "DELETED" {
		delete(f.state, keyOf(of))
	}
	return marked(encode(of), mark)
}

func keyOf(metadata object) string { return at(metadata, "namespace") + "/" + at(metadata, "name") }

// metadata returns that of an object, or of the row of a Table.
func metadata(o object) object {
	if rows, _ := o["rows"].([]any); len(rows) == 1 {
		o, _ = rows[0].(object)["object"].(object)
	}
	of, _ := o["metadata"].(object)
	return of
}

// content is an object, or the row of a Table, as it is in lists too.
func content(o object) string {
	if rows, _ := o["rows"].([]any); len(rows) == 1 {
		return normal(encode(rows[0]), false)
	}
	o = maps.Clone(o)
	delete(o, "kind")
	delete(o, "apiVersion")
	return normal(encode(o), false)
}

// resume opens the watch again, or lists if its version is gone.
func (f *follower) resume(r *run) {
	for deadline := time.Now().Add(patience / 2); ; {
		if f.last == "" {
			f.list(r)
		}
		refused := f.open(r, f.request.with(map[string]string{"resourceVersion": f.last}, "sendInitialEvents", "resourceVersionMatch"))
		if refused == nil {
			return
		}
		if refused.status == http.StatusGone {
			f.gone++
			f.last = ""
		}
		require.True(r, time.Now().Before(deadline), "%s: the watch can't be resumed: %s", f.side.name, refused.body)
	}
}

// list replaces the state.
func (f *follower) list(r *run) {
	q := f.request.with(nil, "watch", "sendInitialEvents", "resourceVersionMatch", "resourceVersion", "allowWatchBookmarks", "timeoutSeconds", "limit", "continue")
	if q.accept == asMetaOne {
		q.accept = asMetadata
	}
	for deadline := time.Now().Add(patience / 2); f.last == ""; {
		a, err := f.side.ask(r.ctx, q)
		require.NoError(r, err)
		require.True(r, time.Now().Before(deadline), "%s: the list that a 410 asks for: %s", f.side.name, a.body)
		if a.status == http.StatusOK {
			f.relisted, f.last, f.state = true, at(decodeList(a), "metadata", "resourceVersion"), map[string]string{}
			for _, item := range items(decodeList(a)) {
				f.state[keyOf(metadata(item))] = content(item)
			}
		}
	}
}

// pair is the same watch on both sides.
type pair struct {
	step      *watch
	followers [2]*follower
	// redefined: the definition has changed meanwhile. Each server notices that, and ends
	// its watches, at its own moment, and an object is as it was defined when it was read.
	redefined bool
}

func (p *pair) close() {
	for _, f := range p.followers {
		f.close()
	}
}

// watch opens a watch on both sides. Steps that follow change what it shows; it is compared
// at each look and at the end.
type watch struct{ read }

func drawWatch(d *rand.Rand) step {
	s := &watch{*drawRead(d).(*read)}
	s.selectFrom(d)
	s.accept = pick(d, watchForms)
	values := map[string]string{"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": drawVersion(d),
		"sendInitialEvents": pick(d, []string{"", "", "", "true", "true", "false"}), "resourceVersionMatch": pick(d, []string{"", "", "", "NotOlderThan"})}
	if values["sendInitialEvents"] == "true" {
		values["resourceVersionMatch"] = "NotOlderThan"
	}
	if d.IntN(20) == 0 {
		values["resourceVersionMatch"] = "Exact"
	}
	if d.IntN(10) == 0 {
		values["resourceVersion"] = "+1000000 writes"
	}
	if d.IntN(15) == 0 {
		name, value, _ := strings.Cut(pick(d, []string{"timeoutSeconds=-1", "timeoutSeconds=-1", "timeoutSeconds=9223372036854775807", "limit=1", "continue=x", "timeoutSeconds=x"}), "=")
		values[name] = value
	}
	s.request = s.with(values)
	return s
}

func (s *watch) String() string { return s.request.String() }

func (s *watch) do(r *run) {
	if p := r.watchBoth(s, r.known(s.request)); p != nil {
		if p.look(r, s, true); p.followers[0].decoder != nil {
			r.watches = append(r.watches, p)
		}
	}
}

// watchBoth opens a watch on both sides, and returns none if one refuses.
func (r *run) watchBoth(s *watch, q *request) *pair {
	r.requests.Add(1)
	p := &pair{step: s}
	c := &comparison{run: r, request: q}
	for i, side := range r.sides {
		p.followers[i] = &follower{side: side, request: q, state: map[string]string{}, last: q.query.Get("resourceVersion")}
		c.answers[i] = p.followers[i].open(r, q)
	}
	switch {
	case r.ahead(q) && c.answers[ours] == nil && c.answers[shipped] == nil:
		c.errors(s, p)
	case c.judge(s) && c.answers[ours] == nil && c.answers[shipped] == nil:
		return p
	}
	p.close()
	return nil
}

// ahead reports whether a request names a version to come.
func (r *run) ahead(q *request) bool {
	version, err := strconv.ParseUint(q.query.Get("resourceVersion"), 10, 64)
	return err == nil && version > uint64(r.noted[len(r.noted)-1])
}

// errors compares the first events of both, which are errors or come too late.
func (c *comparison) errors(s *watch, p *pair) {
	for i, f := range p.followers {
		timer := time.AfterFunc(patience/12, f.stop)
		e, err := f.next()
		timer.Stop()
		c.answers[i] = &answer{status: http.StatusOK}
		if err == nil {
			c.answers[i].status, _ = strconv.Atoi(at(e.Object, "code"))
		}
	}
	c.judge(s)
}

// look compares all watches.
func (r *run) look(s fmt.Stringer) {
	for _, p := range r.watches {
		p.look(r, s, false)
	}
	r.watches = slices.DeleteFunc(r.watches, func(p *pair) bool { return p.followers[0].decoder == nil && p.followers[1].decoder == nil })
}

// move lets the clients of both sides change places, with the versions that they have.
func (r *run) move(s fmt.Stringer) {
	r.look(s)
	for _, p := range r.watches {
		p.close()
		a, b := p.followers[0], p.followers[1]
		a.side, b.side = b.side, a.side
		p.followers = [2]*follower{b, a}
		a.resume(r)
		b.resume(r)
	}
}

// look marks an object that the watch must show, reads both streams up to there and
// compares them.
func (p *pair) look(r *run, s fmt.Stringer, first bool) {
	r.restore()
	mark := r.mark(p.step.resource, p.step.match)
	for _, f := range p.followers {
		f.until(r, mark)
	}
	c := &comparison{run: r, request: p.followers[0].request, pair: p, first: first}
	c.judge(p.step)
	if p.followers[ours].relisted != p.followers[shipped].relisted {
		p.close() // one has more than the other
	}
	for _, f := range p.followers {
		f.since = since{}
	}
}

// mark writes an annotation that no object had before.
func (r *run) mark(of *resource, t thing) string {
	r.marks++
	mark := strconv.Itoa(r.marks)
	body := t.object(of, "mark", object{"mark": mark})
	a := r.ask(r.marks%2, writing(http.MethodPatch, of, t.namespace, t.name, body))
	if a.status == http.StatusNotFound {
		a = r.ask(r.marks%2, writing(http.MethodPost, of, t.namespace, "", body))
	}
	require.Less(r, a.status, http.StatusBadRequest, "the mark is refused: %s", a.body)
	r.note()
	return mark
}

func marked(text, mark string) bool { return strings.Contains(text, fmt.Sprintf(`"mark":%q`, mark)) }
