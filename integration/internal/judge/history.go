// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"sort"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// Change is one write of a device, as etcd tells it.
type Change struct {
	Rev     int64
	Key     string // namespace/name
	Deleted bool
	Content string // the device's model, which names the write
	Sum     uint64 // of the whole device, see Item
	Labels  labels.Set
	Fields  fields.Set
	Before  *Change   // of the same key; nil if there was none
	Seen    time.Time // when the history heard of it
}

// object reports whether there is an object after the change.
func (c *Change) object() bool { return c != nil && !c.Deleted }

func (c *Change) item() Item { return Item{RV: c.Rev, Content: c.Content, Sum: c.Sum} }

// History is what happened, in etcd's order. Its methods are for one goroutine at
// a time.
type History struct {
	changes []*Change
	latest  map[string]*Change
	rev     int64 // how far it goes
	// begun: revisions follow each other without a gap from here on.
	begun bool
}

// NewHistory returns an empty one, which Extend fills.
func NewHistory() *History { return &History{latest: map[string]*Change{}} }

// Rev is how far the history goes.
func (h *History) Rev() int64 { return h.rev }

// Changes is how many there are.
func (h *History) Changes() int { return len(h.changes) }

func (h *History) add(c *Change) {
	c.Before = h.latest[c.Key]
	h.latest[c.Key] = c
	h.changes = append(h.changes, c)
	h.rev = max(h.rev, c.Rev)
}

// Mark is a key of the judge; a write of Mark makes a revision to wait for.
const Mark = "/judge/mark"

// Extend reads on to a revision that it makes, and returns it. Extend fails if a
// revision is missing: etcd gives each number to one transaction that writes, so
// that a watch of all keys that has no gap sees every number.
func (h *History) Extend(ctx context.Context, client *clientv3.Client) (int64, error) {
	put, err := client.Put(ctx, Mark, "")
	if err != nil {
		return 0, err
	}
	return put.Header.Revision, h.ExtendTo(ctx, client, put.Header.Revision)
}

// ExtendTo is Extend to a revision that somebody else has made.
func (h *History) ExtendTo(ctx context.Context, client *clientv3.Client, to int64) error {
	if h.rev >= to {
		return nil
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for response := range client.Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(h.rev+1)) {
		if err := response.Err(); err != nil {
			return err
		}
		for _, event := range response.Events {
			if err := h.take(event); err != nil {
				return err
			}
		}
		if h.rev >= to {
			return nil
		}
	}
	return fmt.Errorf("reading etcd's history from revision %d: the watch ended: %w", h.rev+1, ctx.Err())
}

func (h *History) take(event *clientv3.Event) error {
	rev := event.Kv.ModRevision
	if h.begun && rev != h.rev && rev != h.rev+1 {
		return fmt.Errorf("reading etcd's history: revision %d comes after %d", rev, h.rev)
	}
	h.rev, h.begun = rev, true
	return h.record(event)
}

func (h *History) record(event *clientv3.Event) error {
	dir, name := path.Split(string(event.Kv.Key))
	if !strings.Contains(dir, "/devices/") {
		return nil
	}
	c := &Change{Rev: event.Kv.ModRevision, Key: path.Base(dir) + "/" + name, Deleted: event.Type == clientv3.EventTypeDelete, Seen: time.Now()}
	if !c.Deleted {
		var device fleetv1.Device
		if err := json.Unmarshal(event.Kv.Value, &device); err != nil {
			return fmt.Errorf("%s at revision %d: %w", event.Kv.Key, c.Rev, err)
		}
		item := ItemOf(&device)
		c.Content, c.Sum, c.Labels, c.Fields = item.Content, item.Sum, device.Labels, fieldsOf(&device)
	}
	h.add(c)
	return nil
}

// fieldsOf are the fields by which the tests select.
func fieldsOf(d *fleetv1.Device) fields.Set {
	return fields.Set{"metadata.namespace": d.Namespace, "metadata.name": d.Name, "spec.owner": d.Spec.Owner, "spec.zone": d.Spec.Zone}
}

// Selection is which devices a watch or a list asks for.
type Selection struct {
	Namespace string          // empty: all
	Labels    labels.Selector // nil: all
	Fields    fields.Selector // nil: all
}

// String is how the selection looks in a request.
func (s Selection) String() string {
	out := fmt.Sprintf("namespace=%q", s.Namespace)
	if s.Labels != nil {
		out += fmt.Sprintf(" labels=%q", s.Labels)
	}
	if s.Fields != nil {
		out += fmt.Sprintf(" fields=%q", s.Fields)
	}
	return out
}

func (s Selection) includes(c *Change) bool {
	return c.object() && (s.Namespace == "" || strings.HasPrefix(c.Key, s.Namespace+"/")) &&
		(s.Labels == nil || s.Labels.Matches(c.Labels)) && (s.Fields == nil || s.Fields.Matches(c.Fields))
}

// Event is one event of a watch.
type Event struct {
	Kind    watch.EventType
	Key     string // of a bookmark: empty
	RV      int64
	Content string
	Sum     uint64
	// Ends: a bookmark that ends the initial events.
	Ends bool
}

// after gives the changes above a revision.
func (h *History) after(rev int64) []*Change {
	return h.changes[sort.Search(len(h.changes), func(i int) bool { return h.changes[i].Rev > rev }):]
}

// at gives the change of a key at a revision; nil if there is none.
func (h *History) at(key string, rev int64) *Change {
	for _, c := range h.after(rev - 1) {
		if c.Rev != rev {
			break
		}
		if c.Key == key {
			return c
		}
	}
	return nil
}

// Expect gives what a watch of s must deliver above from and up to to.
func (h *History) Expect(s Selection, from, to int64) []Event {
	var out []Event
	for _, c := range h.after(from) {
		if c.Rev > to {
			break
		}
		event := Event{Key: c.Key, RV: c.Rev, Content: c.Content, Sum: c.Sum}
		switch now, then := s.includes(c), s.includes(c.Before); {
		case now && then:
			event.Kind = watch.Modified
		case now:
			event.Kind = watch.Added
		case then:
			event.Kind, event.Content, event.Sum = watch.Deleted, c.Before.Content, c.Before.Sum
		default:
			continue
		}
		out = append(out, event)
	}
	return out
}

// Item is an object that a read returned.
type Item struct {
	RV      int64
	Content string
	// Sum is a digest of all that clients see of the object, but for its version.
	Sum uint64
}

// each calls visit with the state at each of the revisions, which ascend: the
// last change of each object that there is. The state is valid during the call.
func (h *History) each(revs []int64, visit func(i int, state map[string]*Change)) {
	state, next := map[string]*Change{}, 0
	for i, rev := range revs {
		for ; next < len(h.changes) && h.changes[next].Rev <= rev; next++ {
			c := h.changes[next]
			if c.Deleted {
				delete(state, c.Key)
			} else {
				state[c.Key] = c
			}
		}
		visit(i, state)
	}
}

// StateAt gives what a list of s must have at a revision.
func (h *History) StateAt(s Selection, rev int64) (items map[string]Item) {
	h.each([]int64{rev}, func(_ int, state map[string]*Change) { items = s.of(state) })
	return items
}

// of gives the items of a state that the selection includes.
func (s Selection) of(state map[string]*Change) map[string]Item {
	items := make(map[string]Item, len(state))
	for key, c := range state {
		if s.includes(c) {
			items[key] = c.item()
		}
	}
	return items
}
