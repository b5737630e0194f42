// SPDX-License-Identifier: Apache-2.0

// Package shadow compares a cache, the shadow, with the storage that serves. A [Storage] forwards
// all requests to the serving storage, and repeats a fraction of the GETs, LISTs and WATCHes on the
// shadow, in its own goroutines and contexts, to compare at the same version. Clients may change
// their objects, so it first copies the object of a GET, up to 15 random objects of a LIST, about
// every 16th object of events, and the names and versions of all.
//
// Comparisons:
//   - GET: existence, version and content. The shadow reads at the response's version or later. If
//     they differ, possibly due to a write between, the shadow's response is compared with the
//     serving storage at the shadow's version.
//   - LIST: ordered items, meaning of the continue token, remaining count, content, at exactly the
//     response's version. Under a selector, one side may return a token if nothing follows it.
//   - WATCH: ordered events without bookmarks, from the requested version or, without one, a
//     version not below the initial state. An initial state ended by a bookmark is compared with
//     the shadow's list at the bookmark's version.
//
// A panic of the shadow is a difference. Excused and counted separately are
//   - errors of the serving storage, except NotFound;
//   - requests that the shadow can't answer from memory: it isn't ready, is late, ended the watch,
//     or dropped the version (410), since windows differ;
//   - pages listed in COMPATIBILITY.md: tokens without a version, with a resourceVersion or a
//     match, or under a selector of one namespace;
//   - requests that find no [Room].
package shadow

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/ptr"

	"github.com/kube-watchcache/watchcache/metrics"
)

const (
	// patience bounds the comparison of a response, and the lag of the shadow's events.
	patience = 10 * time.Second
	// Limits of a Room. A read uses one goroutine, a watch two; an object of a list or initial
	// state takes 80 bytes, in a list also the struct.
	mostReads, mostWatches, mostObjects = 16, 128, 100_000
	mostNotes                           = 512 // events of a watch queued for comparison
	differentContent, differentToken    = "content of an object", "continue token"
)

var (
	errNoRoom  = errors.New("there is no room")
	errExcused = errors.New("the two sides may differ here")
	errLate    = errors.New("no event has come in time")
)

// Room bounds the comparisons of all Storages that share it. The zero value is usable.
type Room struct{ reads, watches, objects atomic.Int64 }

// Config configures a Storage. All fields are required.
type Config struct {
	// Serving answers every request. Shadow repeats a Fraction of them under Context.
	Serving, Shadow      storage.Interface
	Fraction             float64
	Context              context.Context
	NewFunc, NewListFunc func() runtime.Object // return an empty object and list
	Room                 *Room
	Metrics              *metrics.Resource
	Report               func(Difference) // called for each difference
}

// Difference is a difference between the serving storage and its shadow.
type Difference struct {
	Kind            metrics.ShadowKind
	What            string // fixed text, "" if there is no difference
	Serving, Shadow uint64 // versions of both, 0 if unknown
	Stack           string // of a panic
}

// Storage is the serving storage, compared with its shadow.
type Storage struct {
	storage.Interface
	config Config
	ctx    context.Context
	cancel context.CancelFunc
	// starting serializes starting goroutines with Stop.
	starting sync.Mutex
	running  sync.WaitGroup
}

// New returns a Storage, to be ended by Stop. It starts goroutines only for requests.
func New(config Config) *Storage {
	s := &Storage{Interface: config.Serving, config: config}
	s.ctx, s.cancel = context.WithCancel(config.Context)
	return s
}

// Stop ends comparisons and compared watches, and waits for their goroutines.
func (s *Storage) Stop() {
	s.starting.Lock()
	s.cancel()
	s.starting.Unlock()
	s.running.Wait()
}

// run starts f in a goroutine that Stop awaits, or returns false after Stop.
func (s *Storage) run(f func()) bool {
	s.starting.Lock()
	defer s.starting.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.running.Go(f)
	return true
}

// Shadow returns the storage in the shadow.
func (s *Storage) Shadow() storage.Interface { return s.config.Shadow }

func (s *Storage) drawn() bool { return rand.Float64() < s.config.Fraction }

// Get implements storage.Interface.
func (s *Storage) Get(ctx context.Context, key string, opts storage.GetOptions, into runtime.Object) error {
	err := s.Interface.Get(ctx, key, opts, into)
	if s.drawn() {
		s.try(metrics.ShadowGet, func() error {
			serving := into.DeepCopyObject()
			return s.after(metrics.ShadowGet, 1, func(ctx context.Context) (Difference, error) { return s.compareGet(ctx, key, serving, err) })
		})
	}
	return err
}

// GetList implements storage.Interface.
func (s *Storage) GetList(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	err := s.Interface.GetList(ctx, key, opts, into)
	if err == nil && s.drawn() {
		s.try(metrics.ShadowList, func() error {
			serving, err := listedOf(into, max(1, meta.LenList(into)/8))
			if err != nil {
				return err
			}
			return s.after(metrics.ShadowList, len(serving.items), func(ctx context.Context) (Difference, error) { return s.compareList(ctx, key, opts, serving) })
		})
	}
	return err
}

func (s *Storage) after(kind metrics.ShadowKind, objects int, compare func(context.Context) (Difference, error)) error {
	leave := s.enter(&s.config.Room.reads, mostReads, objects)
	if leave == nil {
		return errNoRoom
	}
	if !s.run(func() {
		defer leave()
		ctx, cancel := context.WithTimeout(s.ctx, patience)
		defer cancel()
		s.try(kind, func() error { found, err := compare(ctx); return s.conclude(kind, found, err) })
	}) {
		leave()
	}
	return nil
}

// enter reserves a slot and room for objects. It returns nil if there is none.
func (s *Storage) enter(slots *atomic.Int64, most int64, objects int) (leave func()) {
	all := &s.config.Room.objects
	leave = func() { slots.Add(-1); all.Add(-int64(objects)) }
	if taken, kept := slots.Add(1), all.Add(int64(objects)); taken > most || kept > mostObjects {
		leave()
		return nil
	}
	return leave
}

// try calls f and counts errors as excuses and panics as differences.
func (s *Storage) try(kind metrics.ShadowKind, f func() error) (ok bool) {
	defer func() {
		if p := recover(); p != nil {
			_ = s.conclude(kind, Difference{What: "panic", Stack: fmt.Sprintf("%T\n%s", p, debug.Stack())}, nil)
		}
	}()
	err := f()
	if errors.Is(err, errNoRoom) {
		s.config.Metrics.ShadowSkipped(metrics.ShadowNoRoom)
	} else if err != nil {
		s.config.Metrics.ShadowSkipped(metrics.ShadowExcused)
	}
	return err == nil
}

// conclude counts a comparison, unless err is set, and reports its difference.
func (s *Storage) conclude(kind metrics.ShadowKind, found Difference, err error) error {
	if err != nil {
		return err
	}
	s.config.Metrics.ShadowCompared(kind)
	if found.Kind = kind; found.What != "" {
		s.config.Metrics.ShadowDiffered(kind)
		s.config.Report(found)
	}
	return nil
}

type record struct {
	event   watch.EventType
	name    types.NamespacedName
	version uint64 // 0 if there is no object
	content runtime.Object
}

func recordOf(object, content runtime.Object) (record, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return record{}, err
	}
	version, err := strconv.ParseUint(accessor.GetResourceVersion(), 10, 64)
	return record{"", types.NamespacedName{Namespace: accessor.GetNamespace(), Name: accessor.GetName()}, version, content}, err
}

// difference returns in what two records differ, or "". It ignores missing content; nil and empty
// slices are equal.
func (r record) difference(other record) string {
	switch {
	case r.event != other.event:
		return "type of an event"
	case r.name != other.name:
		return "which object"
	case r.version != other.version:
		return "version of an object"
	case r.content != nil && other.content != nil && !equality.Semantic.DeepEqual(r.content, other.content):
		return differentContent
	}
	return ""
}

func (s *Storage) compareGet(ctx context.Context, key string, answer runtime.Object, answered error) (found Difference, err error) {
	serving, floor, err := recordOfGet(answer, answered)
	if err == nil && floor == 0 { // NotFound without a version
		floor, err = s.GetCurrentResourceVersion(ctx)
	}
	if err != nil {
		return found, err
	}
	object := s.config.NewFunc()
	err = s.config.Shadow.Get(ctx, key, storage.GetOptions{ResourceVersion: strconv.FormatUint(floor, 10)}, object)
	shadow, at, err := recordOfGet(object, err)
	if err != nil {
		return found, err
	}
	if what := serving.difference(shadow); what != "" && what != differentContent {
		then, err := s.list(ctx, s.Interface, key, storage.ListOptions{Predicate: storage.Everything}, max(at, floor))
		if err != nil {
			return found, err
		}
		serving = append(then.items, record{})[0]
	}
	return Difference{What: serving.difference(shadow), Serving: serving.version, Shadow: shadow.version}, nil
}

// recordOfGet returns the record of a GET, empty for NotFound, and a version at which it holds, 0
// if unknown.
func recordOfGet(object runtime.Object, err error) (r record, at uint64, _ error) {
	if missing := (*storage.StorageError)(nil); storage.IsNotFound(err) && errors.As(err, &missing) {
		return record{}, uint64(max(0, missing.ResourceVersion)), nil
	} else if err != nil {
		return record{}, 0, err
	}
	r, err = recordOf(object, object) // fails after GetOptions.IgnoreNotFound
	return r, r.version, err
}

type listed struct {
	items     []record
	version   uint64
	token     string
	remaining int64 // -1 if unknown
}

// listedOf describes a list. It copies every stride-th item, or for stride 0 keeps all uncopied.
func listedOf(list runtime.Object, stride int) (*listed, error) {
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	l := &listed{items: make([]record, 0, meta.LenList(list)), token: accessor.GetContinue(), remaining: ptr.Deref(accessor.GetRemainingItemCount(), -1)}
	if l.version, err = strconv.ParseUint(accessor.GetResourceVersion(), 10, 64); err != nil {
		return nil, err
	}
	first := rand.IntN(max(1, stride))
	return l, meta.EachListItem(list, func(item runtime.Object) error {
		r, err := recordOf(item, nil)
		if stride == 0 {
			r.content = item
		} else if len(l.items)%stride == first {
			r.content = item.DeepCopyObject()
		}
		l.items = append(l.items, r)
		return err
	})
}

// list lists a storage at exactly the version or, if 0, at that of opts.
func (s *Storage) list(ctx context.Context, from storage.Interface, key string, opts storage.ListOptions, version uint64) (*listed, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if version > 0 {
		opts.ResourceVersion, opts.ResourceVersionMatch = strconv.FormatUint(version, 10), metav1.ResourceVersionMatchExact
	}
	into := s.config.NewListFunc()
	if err := from.GetList(ctx, key, opts, into); err != nil {
		return nil, err
	}
	return listedOf(into, 0)
}

func (l *listed) difference(other *listed) string {
	switch {
	case l.version != other.version:
		return "version of a list"
	case len(l.items) != len(other.items):
		return "number of items"
	}
	for i, r := range l.items {
		if what := r.difference(other.items[i]); what != "" {
			return what
		}
	}
	switch {
	case !sameToken(l.token, other.token):
		return differentToken
	case l.remaining != other.remaining:
		return "remaining count"
	}
	return ""
}

// sameToken reports whether two continue tokens mean the same.
func sameToken(a, b string) bool {
	aKey, aVersion, aErr := storage.DecodeContinue(a, "")
	bKey, bVersion, bErr := storage.DecodeContinue(b, "")
	return a == b || aErr == nil && bErr == nil && aKey == bKey && aVersion == bVersion
}

func (s *Storage) compareList(ctx context.Context, key string, opts storage.ListOptions, serving *listed) (found Difference, err error) {
	at := serving.version
	if opts.Recursive && opts.Predicate.Continue != "" {
		at = 0
		_, version, err := storage.DecodeContinue(opts.Predicate.Continue, "")
		first := storage.SelectionPredicate{Field: opts.Predicate.Field}
		if _, narrowed := first.MatchesSingleNamespace(); narrowed || err != nil || version < 0 || opts.ResourceVersion != "" || opts.ResourceVersionMatch != "" {
			return found, errExcused
		}
	} else if opts.ResourceVersion == "0" && serving.token == "" {
		opts.Predicate.Limit = 0 // a cache ignores the limit there, etcd does not
	}
	shadow, err := s.list(ctx, s.config.Shadow, key, opts, at)
	if err != nil {
		return found, err
	}
	found = Difference{What: serving.difference(shadow), Serving: serving.version, Shadow: shadow.version}
	if found.What == differentToken && (serving.token == "" || shadow.token == "") && !opts.Predicate.Empty() {
		// A cache that reads an index recognizes the last match. Others return a token there.
		opts.ResourceVersion, opts.ResourceVersionMatch, opts.Predicate.Continue, opts.Predicate.Limit = "", "", serving.token+shadow.token, 1
		var rest *listed
		if rest, err = s.list(ctx, s.Interface, key, opts, 0); err == nil && len(rest.items) == 0 {
			found.What = ""
		}
	}
	return found, err
}
