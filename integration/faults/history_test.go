// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"sort"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// change is one write of a device, as etcd tells it.
type change struct {
	rev     int64
	key     string // namespace/name
	deleted bool
	content string
	labels  labels.Set
	before  *change // of the same key; nil if there was none
}

// object reports whether there is an object after the change.
func (c *change) object() bool { return c != nil && !c.deleted }

// history is what happened, in etcd's order.
type history struct {
	changes []*change
	latest  map[string]*change
	rev     int64 // how far it goes
}

func newHistory() *history { return &history{latest: map[string]*change{}} }

func (h *history) add(c *change) {
	c.before = h.latest[c.key]
	h.latest[c.key] = c
	h.changes = append(h.changes, c)
	h.rev = max(h.rev, c.rev)
}

// mark is a key of the judge; a write of it makes a revision to wait for.
const mark = "/judge/mark"

// extend reads on to a revision that it makes, and returns it.
func (h *history) extend(ctx context.Context, client *clientv3.Client) (int64, error) {
	put, err := client.Put(ctx, mark, "")
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for response := range client.Watch(ctx, "/", clientv3.WithPrefix(), clientv3.WithRev(h.rev+1)) {
		if err := response.Err(); err != nil {
			return 0, err
		}
		for _, event := range response.Events {
			h.rev = event.Kv.ModRevision
			if err := h.record(event); err != nil {
				return 0, err
			}
		}
		if h.rev >= put.Header.Revision {
			return put.Header.Revision, nil
		}
	}
	return 0, fmt.Errorf("reading etcd's history from revision %d: the watch ended: %w", h.rev+1, ctx.Err())
}

func (h *history) record(event *clientv3.Event) error {
	dir, name := path.Split(string(event.Kv.Key))
	if !strings.Contains(dir, "/devices/") {
		return nil
	}
	c := &change{rev: event.Kv.ModRevision, key: path.Base(dir) + "/" + name, deleted: event.Type == clientv3.EventTypeDelete}
	if !c.deleted {
		var device fleetv1.Device
		if err := json.Unmarshal(event.Kv.Value, &device); err != nil {
			return fmt.Errorf("%s at revision %d: %w", event.Kv.Key, c.rev, err)
		}
		c.content, c.labels = device.Spec.Model, device.Labels
	}
	h.add(c)
	return nil
}

// selection is which devices a watch or a list asks for.
type selection struct {
	namespace string // empty: all
	labels    labels.Selector
}

func (s selection) String() string {
	return fmt.Sprintf("namespace=%q labels=%q", s.namespace, s.labels)
}

func (s selection) includes(c *change) bool {
	return c.object() && (s.namespace == "" || strings.HasPrefix(c.key, s.namespace+"/")) && s.labels.Matches(c.labels)
}

// delivered is one event of a watch, without bookmarks.
type delivered struct {
	kind    watch.EventType
	key     string
	rv      int64
	content string
}

// expect gives what a watch of s must deliver above from and up to to.
func (h *history) expect(s selection, from, to int64) []delivered {
	var out []delivered
	first := sort.Search(len(h.changes), func(i int) bool { return h.changes[i].rev > from })
	for _, c := range h.changes[first:] {
		if c.rev > to {
			break
		}
		event := delivered{key: c.key, rv: c.rev, content: c.content}
		switch now, then := s.includes(c), s.includes(c.before); {
		case now && then:
			event.kind = watch.Modified
		case now:
			event.kind = watch.Added
		case then:
			event.kind, event.content = watch.Deleted, c.before.content
		default:
			continue
		}
		out = append(out, event)
	}
	return out
}

// item is an object that a read returned.
type item struct {
	rv      int64
	content string
}

// each calls visit with the state at each of the revisions, which ascend. The
// state is valid during the call.
func (h *history) each(revs []int64, visit func(i int, state map[string]item)) {
	state, next := map[string]item{}, 0
	for i, rev := range revs {
		for ; next < len(h.changes) && h.changes[next].rev <= rev; next++ {
			c := h.changes[next]
			if c.deleted {
				delete(state, c.key)
			} else {
				state[c.key] = item{rv: c.rev, content: c.content}
			}
		}
		visit(i, state)
	}
}
