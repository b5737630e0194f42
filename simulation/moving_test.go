// SPDX-License-Identifier: Apache-2.0

package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/internal/race"
)

// movingSchedules is how many schedules of two servers run without -schedules; make verify
// runs 12,000.
const movingSchedules = 500

// written is one change of an object, nil where there was or is none.
type written struct {
	rv            uint64
	before, after *example.Pod
}

// replica is a server: a cache over the storage that both have.
type replica struct {
	cache  *cacher.Cacher
	config cacher.Config
	starts int
	// gap is the life in which the storage has last skipped events, after that many lists.
	gap   life
	lists uint64
}

// life counts the times that a cache was started and has woken up. After each the cache
// lists again, and does not know of a gap before, no more than another server does.
type life struct{ start, woken int }

func (r *replica) life() life {
	s := r.cache.Status()
	if s.Asleep {
		return life{r.starts, int(s.Totals.WokenUp) + 1}
	}
	return life{r.starts, int(s.Totals.WokenUp)}
}

// listed counts the cache's lists of the storage.
func (r *replica) listed() (n uint64) {
	for _, lists := range r.cache.Status().Totals.Relists {
		n += lists
	}
	return n
}

func (r *replica) restart() error {
	if r.cache != nil {
		r.cache.Stop()
	}
	r.starts++
	var err error
	r.cache, err = cacher.New(r.config)
	return err
}

// ofClient is in the context of what clients ask for.
type ofClient struct{}

var clientContext = context.WithValue(context.Background(), ofClient{}, true)

// repeating is a storage that gives the caches some of its objects twice, with an older version
// of the object, and some of its events.
type repeating struct {
	*memstore.Store
	seed uint64 // which of them
}

// repeats returns a number of an object's version, by which it is repeated or not.
func (s *repeating) repeats(pod *example.Pod) (rv, which uint64) {
	rv, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
	if err != nil || rv < 2 {
		return 0, 1
	}
	return rv, rv + s.seed
}

// older returns an earlier version of some objects, which the storage never had, and whether it
// comes first.
func (s *repeating) older(pod *example.Pod) (older *example.Pod, first bool) {
	rv, which := s.repeats(pod)
	if which%3 > 0 {
		return nil, false
	}
	older = pod.DeepCopy()
	older.ResourceVersion = strconv.FormatUint(rv-1, 10)
	older.Labels["write"] = "older"
	return older, which%2 == 0
}

// GetList implements storage.Interface.
func (s *repeating) GetList(ctx context.Context, key string, opts storage.ListOptions, out apiruntime.Object) error {
	err := s.Store.GetList(ctx, key, opts, out)
	list, ok := out.(*example.PodList)
	if err != nil || !ok || ctx.Value(ofClient{}) != nil {
		return err
	}
	var items []example.Pod
	for i := range list.Items {
		older, first := s.older(&list.Items[i])
		if older != nil && first {
			items = append(items, *older)
		}
		items = append(items, list.Items[i])
		if older != nil && !first {
			items = append(items, *older)
		}
	}
	list.Items = items
	return nil
}

// Watch implements storage.Interface.
func (s *repeating) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	inner, err := s.Store.Watch(ctx, key, opts)
	if err != nil || ctx.Value(ofClient{}) != nil {
		return inner, err
	}
	w := &repeated{Interface: inner, events: make(chan watch.Event), stopped: make(chan struct{})}
	go w.run(s, opts.SendInitialEvents != nil && *opts.SendInitialEvents)
	return w, nil
}

// repeated is a watch of a repeating storage. Its goroutine ends with the inner watch, or when
// the watch is stopped.
type repeated struct {
	watch.Interface
	events  chan watch.Event
	once    sync.Once
	stopped chan struct{}
}

func (w *repeated) ResultChan() <-chan watch.Event { return w.events }

func (w *repeated) Stop() {
	w.once.Do(func() { close(w.stopped) })
	w.Interface.Stop()
}

func (w *repeated) run(s *repeating, initial bool) {
	defer close(w.events)
	for event := range w.Interface.ResultChan() {
		again := []watch.Event{event}
		pod, ok := event.Object.(*example.Pod)
		switch {
		case event.Type == watch.Bookmark:
			initial = false
		case ok && initial:
			if older, _ := s.older(pod); older != nil {
				again = append(again, watch.Event{Type: event.Type, Object: older})
			}
		case ok:
			if _, which := s.repeats(pod); which%3 == 0 {
				again = append(again, watch.Event{Type: event.Type, Object: pod.DeepCopy()})
			}
		}
		for _, event := range again {
			select {
			case w.events <- event:
			case <-w.stopped:
			}
		}
	}
}

// moving is a schedule of two servers over one storage, and of clients that go from one
// to the other with the versions that they have.
type moving struct {
	draw     *rand.Rand
	store    *memstore.Store
	replicas [2]*replica
	clients  []*mover
	history  []written
	objects  map[string]*example.Pod
	writes   int
	log      []string
	failure  string
	releases []func()
	gaps     bool // the storage has skipped events
	events   int
	lists    int
}

func (m *moving) note(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf(format, args...))
}

func (m *moving) fail(format string, args ...any) {
	if m.failure == "" {
		m.failure = fmt.Sprintf(format, args...)
	}
}

// mover is a client. It lists, or watches with initial events, then resumes at the last
// version that it has seen whole, and lists again only when it gets a 410.
type mover struct {
	name      string
	key       string
	predicate storage.SelectionPredicate
	watchList bool
	slow      bool // reads an event at a time
	drops     bool // leaves its watch now and then

	server int
	stop   context.CancelFunc
	watch  watch.Interface
	// state is what the client believes, at version; whole is the version to resume from: no
	// event of a later one was seen. synced is set when the initial events have ended.
	state          map[string]string
	version, whole uint64
	synced         bool
	next           int // where in the history to look for the next event
	// doubted is the cache whose storage skipped events that the client may have missed. Only
	// that cache can find out: a client that goes on elsewhere lists.
	doubted     int
	doubtedLife life
}

// kindsOfClients are by what they select and how they read.
var kindsOfClients = []mover{
	{name: "all", key: poddata.Prefix},
	{name: "watch-list", key: poddata.Prefix, watchList: true},
	{name: "namespace", key: poddata.Prefix + "ns1/"},
	{name: "label", key: poddata.Prefix, predicate: poddata.Predicate("color=red", "")},
	{name: "field", key: poddata.Prefix, predicate: poddata.Predicate("", "spec.nodeName=n1")},
	{name: "slow", key: poddata.Prefix, slow: true},
	{name: "dropped", key: poddata.Prefix + "ns2/", predicate: poddata.Predicate("color=red", ""), drops: true},
}

func newMoving(seed uint64) (*moving, error) {
	m := &moving{draw: rand.New(rand.NewPCG(seed, 1)), objects: map[string]*example.Pod{}}
	m.store = memstore.New(poddata.Prefix, poddata.New)
	m.store.Decodes, m.store.History = true, m.draw.IntN(2) == 0
	var source storage.Interface = m.store
	if m.draw.IntN(4) == 0 {
		source = &repeating{m.store, seed}
		m.note("the storage repeats objects and events")
	}
	for i := range m.replicas {
		config := cacher.Config{
			Storage: source, Versioner: storage.APIObjectVersioner{}, GroupResource: poddata.Resource,
			ResourcePrefix: poddata.Prefix, KeyFunc: poddata.Key, GetAttrsFunc: poddata.Attrs,
			NewFunc: poddata.New, NewListFunc: poddata.NewList, Codec: poddata.Codec(),
			EventsHistoryWindow: time.Duration(1+m.draw.IntN(60)) * time.Second, WindowBytes: int64(20_000 + m.draw.IntN(2)*10_000_000),
			BookmarkInterval: time.Duration(1+m.draw.IntN(20)) * time.Second, WatchBuffer: 1 + m.draw.IntN(20),
			ConsistencyCheckInterval: time.Minute,
		}
		if m.draw.IntN(4) == 0 {
			config.LazyStart, config.IdleTimeout = true, 30*time.Second
		}
		m.replicas[i] = &replica{config: config}
		if err := m.replicas[i].restart(); err != nil {
			return nil, err
		}
	}
	for _, kind := range kindsOfClients {
		client := kind
		if client.predicate.Label == nil {
			client.predicate = poddata.Predicate("", "")
		}
		client.server, client.state = m.draw.IntN(2), map[string]string{}
		m.clients = append(m.clients, &client)
	}
	return m, nil
}

// put writes some objects at one revision.
func (m *moving) put(n int) {
	var writes []memstore.Write
	var changes []written
	used := map[string]bool{}
	for range n {
		name := fmt.Sprintf("ns%d/p%d", 1+m.draw.IntN(2), m.draw.IntN(6))
		if used[name] {
			continue
		}
		used[name] = true
		m.writes++
		before := m.objects[name]
		if before != nil && m.draw.IntN(3) == 0 {
			writes = append(writes, memstore.Write{Key: poddata.Prefix + name})
			changes = append(changes, written{before: before})
			delete(m.objects, name)
			continue
		}
		pod := poddata.Pod(name, "color="+[]string{"red", "blue"}[m.draw.IntN(2)], fmt.Sprintf("spec.nodeName=n%d", 1+m.draw.IntN(2)), "write="+strconv.Itoa(m.writes))
		writes = append(writes, memstore.Write{Key: poddata.Prefix + name, Object: pod})
		changes = append(changes, written{before: before, after: pod})
		m.objects[name] = pod
	}
	rv := m.store.Txn(writes...)
	for _, c := range changes {
		c.rv = rv
		m.history = append(m.history, c)
	}
}

// selects reports whether the client sees an object.
func (c *mover) selects(pod *example.Pod) bool {
	if pod == nil || !strings.HasPrefix(poddata.Prefix+pod.Namespace+"/"+pod.Name, c.key) {
		return false
	}
	ok, err := c.predicate.Matches(pod)
	return err == nil && ok
}

// sees returns the event that the client must get of a change, "" if none.
func (c *mover) sees(w written) string {
	was, is := c.selects(w.before), c.selects(w.after)
	switch {
	case was && is:
		return "MODIFIED " + tell(w.after, w.rv)
	case is:
		return "ADDED " + tell(w.after, w.rv)
	case was:
		return "DELETED " + tell(w.before, w.rv)
	}
	return ""
}

func tell(pod *example.Pod, rv uint64) string {
	return fmt.Sprintf("%s/%s@%d #%s", pod.Namespace, pod.Name, rv, pod.Labels["write"])
}

// expected is the next event that the client must get, and where it is in the history.
func (m *moving) expected(c *mover) (text string, rv uint64, next int) {
	for i := c.next; i < len(m.history); i++ {
		if text := c.sees(m.history[i]); text != "" {
			return text, m.history[i].rv, i + 1
		}
	}
	return "", 0, len(m.history)
}

// after is where in the history the changes after a version begin.
func (m *moving) after(rv uint64) int {
	return sort.Search(len(m.history), func(i int) bool { return m.history[i].rv > rv })
}

// patience of a client with one request.
const requestTimeout = 20 * time.Second

// act is what a client does in its turn.
func (m *moving) act(c *mover, final bool) {
	if c.watch == nil && !m.connect(c) {
		return
	}
	for n := 0; c.watch != nil; n++ {
		if c.slow && !final && n > 0 {
			return
		}
		select {
		case event, ok := <-c.watch.ResultChan():
			if !ok {
				m.leave(c, "its watch ended")
				return
			}
			m.receive(c, event)
		default:
			synctest.Wait()
			if len(c.watch.ResultChan()) > 0 {
				continue
			}
			if c.drops && !final && m.draw.IntN(4) == 0 {
				m.leave(c, "it drops its watch")
			}
			return
		}
	}
}

func (m *moving) receive(c *mover, event watch.Event) {
	switch object := event.Object.(type) {
	case *metav1.Status:
		m.note("%s: %d %s", c.name, object.Code, object.Reason)
		if object.Code == 410 {
			c.version, c.whole, c.synced = 0, 0, false
		}
		m.leave(c, "an error")
		return
	default:
		pod, ok := podOf(event)
		if !ok {
			m.fail("%s: an event of %T", c.name, object)
			return
		}
		rv, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
		if err != nil {
			m.fail("%s: %v", c.name, err)
			return
		}
		if event.Type == watch.Bookmark {
			m.note("%s on server %d: bookmark %d", c.name, c.server, rv)
			if text, missed, _ := m.expected(c); c.synced && text != "" && missed <= rv && !m.gaps {
				m.fail("%s: a bookmark at %d, but %s has not come", c.name, rv, text)
			}
			if pod.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
				c.synced = true
				m.compare(c, rv)
			}
			if c.synced {
				c.version, c.whole, c.next = rv, rv, m.after(rv)
			}
			return
		}
		m.events++
		m.note("%s on server %d: %s %s", c.name, c.server, event.Type, tell(pod, rv))
		text := string(event.Type) + " " + tell(pod, rv)
		if c.synced {
			want, _, next := m.expected(c)
			if text != want && !m.gaps {
				m.fail("%s on server %d, from version %d: got %q, want %q", c.name, c.server, c.whole, text, want)
				return
			}
			if rv > c.version {
				c.whole = max(c.whole, c.version) // the revision before is whole
			}
			if m.gaps {
				next = m.after(rv)
			}
			c.version, c.next = rv, next
		}
		name := pod.Namespace + "/" + pod.Name
		if event.Type == watch.Deleted {
			delete(c.state, name)
		} else {
			c.state[name] = tell(pod, rv)
		}
	}
}

// leave ends a watch. The client goes on from the last whole version, here or there.
func (m *moving) leave(c *mover, why string) {
	m.note("%s leaves server %d at %d: %s", c.name, c.server, c.whole, why)
	c.stop()
	c.watch.Stop()
	c.watch = nil
	if !c.synced {
		c.whole = 0
	}
	c.version, c.next = c.whole, m.after(c.whole)
	if m.draw.IntN(2) == 0 {
		c.server = 1 - c.server
	}
}

// end is a version beyond all.
const end = math.MaxUint64

// compare holds the state of a client to what the storage had at a version.
func (m *moving) compare(c *mover, rv uint64) {
	want := map[string]string{}
	for _, w := range m.history {
		if w.rv > rv {
			break
		}
		switch text := c.sees(w); {
		case strings.HasPrefix(text, "DELETED"):
			delete(want, w.before.Namespace+"/"+w.before.Name)
		case text != "":
			want[w.after.Namespace+"/"+w.after.Name] = tell(w.after, w.rv)
		}
	}
	if got := fmt.Sprint(c.state); got != fmt.Sprint(want) && (!m.gaps || rv == end) {
		m.fail("%s at version %d: has %s, want %s", c.name, rv, got, fmt.Sprint(want))
	}
}

// connect opens a watch, after a list if there is no version to resume from.
func (m *moving) connect(c *mover) bool {
	if c.doubted > 0 && c.whole > 0 && (c.doubted != 1+c.server || c.doubtedLife != m.replicas[c.server].life()) {
		c.version, c.whole, c.synced = 0, 0, false
	}
	if c.whole == 0 {
		c.doubted = 0
	}
	if r := m.replicas[c.server]; c.doubted == 0 && m.gaps && r.gap == r.life() {
		c.doubted, c.doubtedLife = 1+c.server, r.gap
	}
	cache := m.replicas[c.server].cache
	opts := storage.ListOptions{Recursive: true, Predicate: c.predicate}
	opts.Predicate.AllowWatchBookmarks = true
	switch {
	case c.whole == 0 && c.watchList:
		initial := true
		opts.SendInitialEvents, opts.ResourceVersionMatch = &initial, metav1.ResourceVersionMatchNotOlderThan
		c.state, c.synced = map[string]string{}, false
		m.lists++
	case c.whole == 0:
		m.lists++
		ctx, cancel := context.WithTimeout(clientContext, requestTimeout)
		defer cancel()
		list := &example.PodList{}
		if err := cache.GetList(ctx, c.key, opts, list); err != nil {
			m.note("%s: list on server %d: %v", c.name, c.server, err)
			c.server = 1 - c.server
			return false
		}
		rv, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
		if err != nil {
			m.fail("%s: a list at %q", c.name, list.ResourceVersion)
			return false
		}
		c.state = map[string]string{}
		for i := range list.Items {
			pod := &list.Items[i]
			at, _ := strconv.ParseUint(pod.ResourceVersion, 10, 64)
			c.state[pod.Namespace+"/"+pod.Name] = tell(pod, at)
		}
		c.version, c.whole, c.synced, c.next = rv, rv, true, m.after(rv)
		m.compare(c, rv)
	}
	if c.whole > 0 {
		opts.ResourceVersion = strconv.FormatUint(c.whole, 10)
	}
	ctx, cancel := context.WithCancel(clientContext)
	timer := time.AfterFunc(requestTimeout, cancel)
	opened, err := cache.Watch(ctx, c.key, opts)
	if !timer.Stop() && err == nil {
		opened.Stop()
		err = context.DeadlineExceeded
	}
	if err != nil {
		cancel()
		m.note("%s: watch from %q on server %d: %v", c.name, opts.ResourceVersion, c.server, err)
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			c.version, c.whole, c.synced = 0, 0, false
		}
		c.server = 1 - c.server
		return false
	}
	m.note("%s watches on server %d from %q", c.name, c.server, opts.ResourceVersion)
	c.watch, c.stop = opened, cancel
	return true
}

func podOf(event watch.Event) (*example.Pod, bool) {
	object := event.Object
	if cached, ok := object.(apiruntime.CacheableObject); ok {
		object = cached.GetObject()
	}
	pod, ok := object.(*example.Pod)
	return pod, ok
}

// step does one thing to the servers or their storage.
func (m *moving) step() {
	switch n := m.draw.IntN(100); {
	case n < 40:
		m.put(1)
	case n < 50:
		m.put(1 + m.draw.IntN(5))
	case n < 56:
		burst := 20 + m.draw.IntN(60)
		m.note("a burst of %d", burst)
		for range burst {
			m.put(1)
		}
	case n < 66:
		pause := time.Duration(m.draw.IntN(40_000)) * time.Millisecond
		m.note("%v pass", pause)
		time.Sleep(pause)
	case n < 71 && len(m.history) > 0:
		rv := m.history[m.draw.IntN(len(m.history))].rv
		m.note("compaction at %d", rv)
		m.store.Compact(rv)
	case n < 77:
		i := m.draw.IntN(2)
		m.note("server %d restarts", i)
		if err := m.replicas[i].restart(); err != nil {
			m.fail("server %d does not start: %v", i, err)
		}
	case n < 82:
		why := []*apierrors.StatusError{apierrors.NewResourceExpired("compacted"), apierrors.NewServiceUnavailable("gone for a moment")}[m.draw.IntN(2)]
		m.note("the storage's watches break: %v", why)
		m.store.BreakWatches(why)
	case n < 85:
		m.note("the storage's watches hang")
		m.releases = append(m.releases, m.store.HangWatches(memstore.Hang{}))
	case n < 87:
		m.note("the storage answers nothing")
		m.releases = append(m.releases, m.store.Hold())
	case n < 88:
		m.note("changes can't be decoded")
		m.releases = append(m.releases, m.store.Corrupt(apierrors.NewInternalError(errors.New("unable to decode an object"))))
	case n < 91:
		// Between a gap and the list that finds it clients may see a wrong state. All of
		// them must end with the right one.
		m.note("the storage's watches skip events")
		m.gaps = true
		for _, r := range m.replicas {
			r.gap, r.lists = r.life(), r.listed()
		}
		for _, c := range m.clients {
			if c.doubted == 0 {
				c.doubted, c.doubtedLife = 1+c.server, m.replicas[c.server].gap
			}
		}
		m.loseEvents()
	case n < 96:
		m.release()
	default:
		for _, c := range m.clients {
			if c.watch != nil && m.draw.IntN(2) == 0 {
				m.leave(c, "its connection is lost")
			}
		}
	}
}

// loseEvents writes objects whose events the storage's watches lose: all of them, or all after
// the first ones of a revision.
func (m *moving) loseEvents() {
	rv, err := m.store.GetCurrentResourceVersion(context.Background())
	if err != nil {
		m.fail("the storage has no version: %v", err)
		return
	}
	parts := m.draw.IntN(3)
	held := m.store.HoldRevision(rv+1, parts)
	m.put(parts + 1 + m.draw.IntN(3))
	synctest.Wait() // the caches have the first events
	m.store.SkipEvents()
	held()
}

func (m *moving) release() {
	for _, release := range m.releases {
		release()
	}
	m.releases = nil
}

func (m *moving) run() {
	for range 40 {
		m.step()
		synctest.Wait()
		for _, c := range m.clients {
			if m.draw.IntN(3) > 0 {
				m.act(c, false)
			}
			if m.failure != "" {
				return
			}
		}
	}
	// All faults end; every client must come to what the storage has.
	m.release()
	m.put(1)
	for range 40 {
		time.Sleep(15 * time.Second)
		synctest.Wait()
		behind := 0
		for _, c := range m.clients {
			m.act(c, true)
			if text, _, _ := m.expected(c); text != "" || c.watch == nil || !c.synced || m.gaps {
				behind++
			}
		}
		if behind == 0 {
			break
		}
	}
	for _, c := range m.clients {
		if m.failure != "" {
			return
		}
		if !c.synced || c.watch == nil {
			m.fail("%s has no watch in the end", c.name)
			return
		}
		if r := m.replicas[c.server]; c.doubted == 1+c.server && r.gap == r.life() && r.listed() == r.lists && m.equal(r) {
			continue // what was missed has been deleted or written again: nobody can find out
		}
		m.compare(c, end)
	}
}

// equal reports whether a cache that has never listed again has what the storage has.
func (m *moving) equal(r *replica) bool {
	ctx, cancel := context.WithTimeout(clientContext, requestTimeout)
	defer cancel()
	list := &example.PodList{}
	opts := storage.ListOptions{Recursive: true, ResourceVersion: "0", Predicate: poddata.Predicate("", "")}
	if err := r.cache.GetList(ctx, poddata.Prefix, opts, list); err != nil {
		return false
	}
	has := map[string]string{}
	for i := range list.Items {
		pod := &list.Items[i]
		has[pod.Namespace+"/"+pod.Name] = pod.Labels["write"]
	}
	want := map[string]string{}
	for name, pod := range m.objects {
		want[name] = pod.Labels["write"]
	}
	return fmt.Sprint(has) == fmt.Sprint(want)
}

func (m *moving) end() {
	m.release()
	for _, c := range m.clients {
		if c.watch != nil {
			c.stop()
			c.watch.Stop()
		}
	}
	for _, r := range m.replicas {
		if r != nil && r.cache != nil {
			r.cache.Stop()
		}
	}
}

// Clients move between two servers over one storage with the versions that they have. Each
// gets every event once and in order, or a 410, and in the end has what the storage has.
func TestClientsMoveBetweenServers(t *testing.T) {
	n := movingSchedules
	if race.Enabled {
		n /= 10
	}
	if *schedules > 0 {
		n = *schedules
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	events, lists := 0, 0
	for seed := *first; seed < *first+uint64(n); seed++ {
		seedRandom(seed)
		synctest.Test(t, func(t *testing.T) {
			m, err := newMoving(seed)
			require.NoError(t, err)
			m.run()
			m.end()
			events, lists = events+m.events, lists+m.lists
			require.Empty(t, m.failure, "seed %d:\n%s", seed, strings.Join(m.log, "\n"))
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d schedules of two servers, %d events and %d lists judged", n, events, lists)
}
