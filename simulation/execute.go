// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// do runs an operation. An operation that makes no sense, because an operation
// before it is not there, does nothing: a schedule can be cut anywhere.
func (d *driver) do(o Operation) {
	switch o.Verb {
	case "start":
		d.start(o.Setup)
	case "stop":
		d.stop()
	case "share":
		d.share()
	case "unshare":
		d.stores.leaveOne(o.N)
	case "elapse":
		time.Sleep(o.For)
	case "clock":
		by, err := time.ParseDuration(o.What)
		if err != nil {
			d.fail("the clock is set: %v", err)
		}
		d.clock.Set(by)
	case "put", "txn":
		d.write(o.Writes)
	case "remove":
		d.write([]Write{{Name: o.What, Delete: true}})
	case "fill":
		for i := range o.N {
			d.write([]Write{{Name: fmt.Sprintf("%s/f%03d", o.What, i)}})
			if len(o.Words) > 0 {
				synctest.Wait()
			}
		}
	case "touch":
		for range o.N {
			d.history.rv = d.store.Touch()
		}
	case "create", "update", "delete":
		d.writeThrough(o)
	case "watch", "list", "get":
		d.ask(o)
	case "take", "hold", "release", "end", "cancel":
		d.tell(o)
	default:
		d.disturb(o)
	}
}

// write makes writes at one resourceVersion. An object that does not exist is not
// deleted.
func (d *driver) write(writes []Write) {
	type named struct {
		name string
		pod  *example.Pod
	}
	var all []memstore.Write
	var model []named
	for _, w := range writes {
		key := poddata.Prefix + w.Name
		if w.Delete {
			if d.history.now[w.Name] != nil {
				all, model = append(all, memstore.Write{Key: key}), append(model, named{name: w.Name})
			}
			continue
		}
		d.history.writes++
		pod := poddata.Pod(w.Name, w.Attrs...)
		pod.Annotations = map[string]string{writeAnnotation: strconv.Itoa(d.history.writes)}
		all = append(all, memstore.Write{Key: key, Object: pod})
		model = append(model, named{w.Name, pod.DeepCopy()})
	}
	if len(all) == 0 {
		return
	}
	rv := d.store.Txn(all...)
	for _, m := range model {
		d.wrote(rv, m.name, m.pod)
	}
}

// wrote notes a write of an object, nil if it was deleted.
func (d *driver) wrote(rv uint64, name string, after *example.Pod) {
	delete(d.twins, name)
	if d.history.add(rv, name, after) {
		d.lose()
		d.twins[name] = true
	}
}

// ask opens a watch or begins a read.
func (d *driver) ask(o Operation) {
	if d.cacher == nil {
		return
	}
	var key string
	var opts storage.ListOptions
	selection := newSelection(o.Query)
	asked := o.At.text(d.history.rv)
	from := uint64(0)
	if o.At.Set {
		from = o.At.resolve(d.history.rv)
	}
	key, opts.Recursive, opts.ResourceVersion, opts.Predicate = selection.key, selection.recursive, asked, selection.predicate
	ctx, cancel := context.WithCancel(context.Background())
	switch o.Verb {
	case "watch":
		rule := &watchRule{
			selection: selection, asked: asked, from: from, anyPart: d.setup.NoProgress,
			bookmarks: o.Query.Bookmarks, state: o.Query.Initial == "yes" || (o.Query.Initial == "" && from == 0),
			opened: time.Now(), current: d.history.rv, oldest: d.status.OldestResourceVersion, fills: d.restedFills,
			lost: d.lost, troubled: d.faults.troubled(time.Now()), undecodable: d.undecodable, stopped: d.stopped,
		}
		rule.endMark = o.Query.Initial == "yes" && o.Query.Bookmarks
		rule.least = d.least(asked, from)
		rule.ahead = from > d.status.ResourceVersion || (asked == "" && d.history.rv > d.status.ResourceVersion)
		if o.For > 0 {
			rule.deadline = time.Now().Add(o.For)
			cancel() // nobody has it
			ctx, cancel = d.clock.WithTimeout(context.Background(), o.For)
		}
		if rule.stalled = o.Query.Silent; rule.stalled {
			rule.stalledSince = time.Now()
		}
		opts.Predicate.AllowWatchBookmarks = o.Query.Bookmarks
		if o.Query.Initial != "" {
			yes := o.Query.Initial == "yes"
			opts.SendInitialEvents, opts.ResourceVersionMatch = &yes, metav1.ResourceVersionMatchNotOlderThan
		}
		d.watches = append(d.watches, &watching{
			watcher:   openWatch(ctx, cancel, d.cacher, o.What, key, opts, o.Query.Silent),
			watchRule: rule, cache: d.caches,
		})
	default:
		d.read(ctx, cancel, o, &readRule{
			selection: selection, list: o.Verb == "list", name: o.Query.In, asked: asked, from: from,
			match: metav1.ResourceVersionMatch(o.Query.Match), limit: o.Query.Limit, anyPart: d.setup.NoProgress,
			began: time.Now(), current: d.history.rv, floor: d.status.ResourceVersion, lost: d.lost, stopped: d.stopped, late: d.stopped, fills: d.restedFills,
		}, opts)
	}
}

// least returns the number of changes that the beginning of a watch must have.
func (d *driver) least(asked string, from uint64) int {
	floor := d.status.ResourceVersion
	switch {
	case d.setup.NoProgress:
		return d.history.whole(max(1, floor) - 1)
	case asked == "" && (d.status.Silent || d.racing && d.faults.ever): // of any age, as if storage never reported progress
	case asked == "":
		floor = d.history.rv
	default:
		floor = max(floor, from)
	}
	return d.history.whole(floor)
}

func (d *driver) read(ctx context.Context, cancel context.CancelFunc, o Operation, rule *readRule, opts storage.ListOptions) {
	if rule.list {
		if o.Query.From != "" {
			page := d.page(o.Query.From)
			if page == nil {
				cancel()
				return
			}
			// A page is of the selection of the first one.
			rule.selection, rule.continues, rule.after, rule.page = page.selection, true, page.state.after, page.state.page
			opts.Recursive, opts.Predicate = true, page.selection.predicate
			opts.Predicate.Continue = page.state.token
		}
		opts.ResourceVersionMatch, opts.Predicate.Limit = rule.match, int64(rule.limit)
	}
	c, key := d.cacher, rule.selection.key
	encoded := func(list runtime.Object) string { return "" }
	if format := o.Query.Encoded; format != "" {
		k := d.keeping
		encoded = func(list runtime.Object) string { return k.compare(list, format) }
	}
	d.reads = append(d.reads, &reading{cache: d.caches, readRule: rule, reader: startRead(ctx, cancel, o.What, func(ctx context.Context) answer {
		if rule.list {
			ctx, end := d.keeping.lists.Begin(ctx)
			defer end()
			return listPods(ctx, c, key, opts, encoded)
		}
		return getPod(ctx, c, rule.name, storage.GetOptions{ResourceVersion: rule.asked})
	})})
}

// page returns the read of a name that can be continued.
func (d *driver) page(name string) *reading {
	for _, r := range d.reads {
		if r.reader.name == name && r.state.token != "" && r.selection.recursive && !r.lost && !d.lost {
			return r
		}
	}
	return nil
}

// tell has a client do something, or a fault be ordered or released.
func (d *driver) tell(o Operation) {
	if o.Verb == "release" && d.release(o.What) {
		return
	}
	for _, w := range d.watches {
		if w.watcher.name != o.What {
			continue
		}
		switch o.Verb {
		case "take":
			for range o.N {
				synctest.Wait()
				w.take()
			}
		case "hold", "release":
			d.setReading(w, o.Verb == "release")
		case "end":
			w.gone = true
			w.watcher.stop()
		case "cancel":
			w.gone = true
			w.cancel()
		}
		return
	}
	switch o.Verb {
	case "hold":
		d.disturb(o)
	case "cancel":
		for _, r := range d.reads {
			if r.reader.name == o.What {
				r.gone = true
				r.cancel()
			}
		}
	}
}

// setReading has the client of a watch read, or not.
func (d *driver) setReading(w *watching, yes bool) {
	if !w.watcher.read(yes) {
		return
	}
	if w.stalled = !yes; yes {
		w.stalledFor += time.Since(w.stalledSince)
		w.readsSince = time.Now()
	} else {
		w.stalledSince = time.Now()
	}
}

// release ends a fault, and reports whether it was in force. A list that the cache
// has begun before may have come to nothing.
func (d *driver) release(fault string) bool {
	if !d.faults.release(fault) {
		return false
	}
	if d.lost {
		d.lostFills = d.store.fills.Load()
	}
	return true
}

// disturb orders a fault of the storage.
func (d *driver) disturb(o Operation) {
	d.release(o.What)
	switch o.Verb {
	case "hold":
		d.hold(o)
	case "fail":
		d.store.Fail(o.What, errors.New("etcdserver: no leader"))
		d.faults.order(o.What, afterFailure, func() { d.store.Fail(o.What, nil) })
	case "break":
		d.breakWatches(o)
	case "hang":
		d.release("hang")
		d.faults.order("hang", afterFailure, d.store.HangWatches(memstore.Hang{Stale: len(o.Words) > 0, Next: o.N}))
	case "corrupt":
		d.release("corrupt")
		d.undecodable++
		d.faults.order("corrupt", afterFailure, d.store.Corrupt(undecodable))
	case "poison":
		d.undecodable++
		d.store.poisoned.Store(true)
		d.faults.order("poison", afterFailure, func() { d.store.poisoned.Store(false) })
	case "progress":
		if d.faults.releases["progress"] == nil {
			_ = d.store.RequestWatchProgress(context.Background())
		}
	case "compact":
		rv := o.At.resolve(d.history.rv)
		d.history.compacted = max(d.history.compacted, rv)
		d.store.Compact(rv)
		if d.restless {
			d.faults.happened(afterBreak) // the cache may need what is gone
		}
	case "restore":
		d.restore(max(o.At.resolve(d.history.rv), d.history.compacted))
	case "skip":
		d.store.SkipEvents()
		d.lose()
	default:
		d.fail("no operation %q", o.Verb)
	}
}

func (d *driver) hold(o Operation) {
	switch o.What {
	case "events":
		d.faults.order(o.What, afterHold, d.store.Hold())
	case "revision":
		rv := o.At.resolve(d.history.rv)
		d.history.inParts[rv] = true
		d.faults.order(o.What, afterHold, d.store.HoldRevision(rv, o.N))
	default:
		if isRequest(o.What) {
			d.faults.order(o.What, afterFailure, d.store.Gate(o.What))
		}
	}
}

func (d *driver) breakWatches(o Operation) {
	how, always := "", false
	for _, word := range o.Words {
		if word == "always" {
			always = true
		} else {
			how = word
		}
	}
	after := afterBreak
	if how == "unknown" {
		d.undecodable++ // the error may be one of an object
		after = afterFailure
	}
	if always {
		d.release("break")
		d.faults.order("break", afterFailure, d.store.EndWatches(failures[how]))
		return
	}
	d.store.BreakWatches(failures[how])
	d.faults.happened(after)
}

func (d *driver) restore(rv uint64) {
	d.store.Restore(rv)
	d.history.restore(rv)
	for name, o := range d.history.now {
		if d.history.gone[written{name, o.rv}] {
			d.twins[name] = true // again, if a write that is gone now had ended it
		}
	}
	d.lose()
}

// found notes that the cache was filled after a loss.
func (d *driver) found() {
	d.lost = false
	d.mendedUntil, d.mendedAt = time.Now().Add(5*time.Minute), d.status.ResourceVersion
}

// lose notes that what clients see is not promised, until the cache is filled.
func (d *driver) lose() {
	d.lost, d.lostFills = true, d.store.fills.Load()
	d.faults.happened(afterBreak)
	for _, w := range d.watches {
		w.lost = true
	}
	for _, r := range d.reads {
		r.lost = true
	}
}
