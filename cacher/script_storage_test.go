// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/internal/script"
)

// The commands about the storage.

func (f *fixture) put(c *script.Command) (string, error) {
	pod, err := podOf(c.Word(), c)
	if err != nil {
		return "", err
	}
	c.Pairs = nil
	put(f.store.Store, pod)
	return "", nil
}

func (f *fixture) remove(c *script.Command) (string, error) {
	if f.store.Remove(poddata.Prefix+c.Word()) == 0 {
		return "", errors.New("there is no such object")
	}
	return "", nil
}

// txn makes several writes at one resourceVersion.
func (f *fixture) txn(c *script.Command) (string, error) {
	var writes []memstore.Write
	for _, word := range c.Words {
		if name, ok := strings.CutPrefix(word, "-"); ok {
			writes = append(writes, memstore.Write{Key: poddata.Prefix + name})
			continue
		}
		pod, err := podOf(word, c)
		if err != nil {
			return "", err
		}
		writes = append(writes, memstore.Write{Key: poddata.Prefix + word, Object: pod})
	}
	c.Words, c.Pairs = nil, nil
	f.store.Txn(writes...)
	return "", nil
}

// fill writes many objects of a namespace at full speed.
func (f *fixture) fill(c *script.Command) (string, error) {
	namespace := c.Word()
	n, err := c.WordNumber()
	for i := range n {
		pod, e := podOf(fmt.Sprintf("%s/%03d", namespace, i), c)
		if e != nil {
			return "", e
		}
		put(f.store.Store, pod)
	}
	c.Pairs = nil
	return "", err
}

// touch writes to other resources of the storage.
func (f *fixture) touch(c *script.Command) (string, error) {
	n := uint64(1)
	var err error
	if len(c.Words) > 0 {
		n, err = c.WordNumber()
	}
	for range n {
		f.store.Touch()
	}
	return "", err
}

func (f *fixture) compact(c *script.Command) (string, error) {
	rv, err := c.WordNumber()
	f.store.Compact(rv)
	return "", err
}

// progress reports progress, as etcd does by itself now and then.
func (f *fixture) progress(*script.Command) (string, error) {
	return "", f.store.RequestWatchProgress(f.t.Context())
}

func (f *fixture) restore(c *script.Command) (string, error) {
	rv, err := c.WordNumber()
	f.store.Restore(rv)
	return "", err
}

func (f *fixture) skip(*script.Command) (string, error) {
	f.store.SkipEvents()
	return "", nil
}

func (f *fixture) inject(c *script.Command) (string, error) {
	eventType, name, rv := c.Word(), c.Word(), c.Word()
	pod, err := podOf(name, c)
	if err != nil {
		return "", err
	}
	pod.ResourceVersion = rv
	f.store.Inject(watch.Event{Type: watch.EventType(eventType), Object: pod})
	return "", nil
}

// hold holds something back until it is released.
func (f *fixture) hold(c *script.Command) (string, error) {
	what := c.Word()
	switch {
	case what == "events":
		f.releases[what] = f.store.Hold()
	case what == "revision":
		rv, err := c.WordNumber()
		if err != nil {
			return "", err
		}
		events, err := c.Number("after")
		if err != nil {
			return "", err
		}
		f.releases[what] = f.store.HoldRevision(rv, int(events))
	case what == "ends":
		f.store.EndRevisions(false)
		f.releases[what] = func() { f.store.EndRevisions(true) }
	case isRequest(what):
		f.releases[what] = f.store.Gate(what)
	default:
		w, err := f.watcher(what)
		if err != nil {
			return "", err
		}
		w.hold()
	}
	return "", nil
}

func isRequest(kind string) bool {
	switch kind {
	case "create", "update", "delete", "get", "list", "watch", "version", "keyversions", "progress":
		return true
	}
	return false
}

// release undoes hold, fail, break, hang, corrupt and poison.
func (f *fixture) release(c *script.Command) (string, error) {
	for _, what := range c.Words {
		if release, ok := f.releases[what]; ok {
			release()
			delete(f.releases, what)
			continue
		}
		w, err := f.watcher(what)
		if err != nil {
			return "", err
		}
		w.read()
	}
	c.Words = nil
	return "", nil
}

func (f *fixture) fail(c *script.Command) (string, error) {
	for _, kind := range c.Words {
		if !isRequest(kind) {
			return "", fmt.Errorf("no kind of request %q", kind)
		}
		f.store.Fail(kind, errors.New("etcdserver: no leader"))
		f.releases[kind] = func() { f.store.Fail(kind, nil) }
	}
	c.Words = nil
	return "", nil
}

// breakWatches ends the watches of the storage, for ever with the word always.
func (f *fixture) breakWatches(c *script.Command) (string, error) {
	always := c.Flag("always")
	failures := map[string]*apierrors.StatusError{
		"": nil, "expired": apierrors.NewResourceExpired("compacted"), "unavailable": apierrors.NewServiceUnavailable("gone for a moment"),
		"no-leader": noLeader, "unknown": apierrors.NewInternalError(errors.New("the quorum is out for lunch")),
	}
	failure, ok := failures[c.Word()]
	if !ok {
		return "", errors.New("no such failure")
	}
	if always {
		f.releases["break"] = f.store.EndWatches(failure)
	} else {
		f.store.BreakWatches(failure)
	}
	return "", nil
}

func (f *fixture) hang(c *script.Command) (string, error) {
	next, err := c.Number("next")
	before, release := f.releases["hang"], f.store.HangWatches(memstore.Hang{Stale: c.Flag("stale"), Stubborn: c.Flag("stubborn"), Next: int(next)})
	f.releases["hang"] = func() {
		release()
		if before != nil {
			before()
		}
	}
	return "", err
}

func (f *fixture) corrupt(*script.Command) (string, error) {
	f.releases["corrupt"] = f.store.Corrupt(undecodable)
	return "", nil
}

func (f *fixture) poison(*script.Command) (string, error) {
	poisoned := f.poisoned
	poisoned.Store(true)
	f.releases["poison"] = func() { poisoned.Store(false) }
	return "", nil
}

// The commands that write and count through the cache.

func (f *fixture) create(c *script.Command) (string, error) {
	name := c.Word()
	pod, err := podOf(name, c)
	if err != nil {
		return "", err
	}
	c.Pairs = nil
	out := &example.Pod{}
	err = f.cacher.Create(f.t.Context(), poddata.Prefix+name, pod, out, 0)
	return "created " + describe(out, err), nil
}

func (f *fixture) delete(c *script.Command) (string, error) {
	out := &example.Pod{}
	err := f.cacher.Delete(f.t.Context(), poddata.Prefix+c.Word(), out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
	return "deleted " + describe(out, err), nil
}

func (f *fixture) count(*script.Command) (string, error) {
	stats, err := f.cacher.Stats(f.t.Context())
	synctest.Wait()
	if err != nil {
		return describe(nil, err), nil
	}
	return strconv.FormatInt(stats.ObjectCount, 10) + " objects", nil
}
