// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/keptlists"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/internal/script"
)

// client returns the last client of that name, nil if there is none.
func (f *fixture) client(name string) scriptClient {
	for _, client := range slices.Backward(f.clients) {
		if client.label() == name {
			return client
		}
	}
	return nil
}

func (f *fixture) watcher(name string) (*scriptWatch, error) {
	if w, ok := f.client(name).(*scriptWatch); ok && w.result != nil {
		return w, nil
	}
	return nil, fmt.Errorf("no watch %q is open", name)
}

// cancel ends the context of clients' requests, end their watches.
func (f *fixture) cancel(c *script.Command) (string, error) {
	for _, name := range c.Words {
		client := f.client(name)
		if client == nil {
			return "", fmt.Errorf("there is no client %q", name)
		}
		client.giveUp()
	}
	c.Words = nil
	return "", nil
}

func (f *fixture) endWatches(c *script.Command) (string, error) {
	for _, name := range c.Words {
		w, err := f.watcher(name)
		if err != nil {
			return "", err
		}
		w.result.Stop()
	}
	c.Words = nil
	return "", nil
}

// scriptWatch is a watch of a script, and the client that reads it or not.
type scriptWatch struct {
	name   string
	cancel func()

	mu     sync.Mutex
	result watch.Interface // nil while it is being opened, or refused
	paused chan struct{}   // closed to make the client stop reading; nil: it does not read
	events []string        // what no news has told
	told   bool            // that it is being opened
	over   bool            // refused
}

// watch opens a watch in a goroutine, for that may wait.
func (f *fixture) watch(c *script.Command) (string, error) {
	w := &scriptWatch{name: c.Word()}
	key, opts, err := scope(c)
	if err != nil {
		return "", err
	}
	opts.Predicate.AllowWatchBookmarks = c.Flag("bookmarks")
	if initial, ok := c.Lookup("initial"); ok {
		yes := initial == "yes"
		opts.SendInitialEvents, opts.ResourceVersionMatch = &yes, metav1.ResourceVersionMatchNotOlderThan
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	timeout, err := c.Duration("timeout")
	if timeout > 0 {
		ctx, cancel = context.WithTimeout(f.t.Context(), timeout)
	}
	w.cancel = cancel
	silent := c.Flag("silent")
	f.clients = append(f.clients, w)
	go w.open(ctx, f.cacher, key, opts, silent)
	return "", err
}

func (w *scriptWatch) open(ctx context.Context, c *cacher.Cacher, key string, opts storage.ListOptions, silent bool) {
	result, err := c.Watch(keptlists.ShareInitialEvents(ctx), key, opts)
	w.mu.Lock()
	if err != nil {
		w.over = true
		w.events = append(w.events, "refused: "+errorLine(err))
	}
	w.result = result
	w.mu.Unlock()
	if err == nil && !silent {
		w.read()
	}
}

// read makes the client read, until it is told to hold or the watch ends.
func (w *scriptWatch) read() {
	w.mu.Lock()
	defer w.mu.Unlock()
	paused := make(chan struct{})
	w.paused = paused
	go func() {
		for {
			select {
			case event, ok := <-w.result.ResultChan():
				if w.got(event, ok); !ok {
					return
				}
			case <-paused:
				return
			}
		}
	}()
}

func (w *scriptWatch) got(event watch.Event, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !ok {
		w.events = append(w.events, "closed")
		return
	}
	w.events = append(w.events, eventLine(event))
}

func (w *scriptWatch) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.paused)
	w.paused = nil
}

// take has a client that does not read take some events, one after the other.
func (f *fixture) take(c *script.Command) (string, error) {
	w, err := f.watcher(c.Word())
	if err != nil {
		return "", err
	}
	n := uint64(1)
	if len(c.Words) > 0 {
		n, err = c.WordNumber()
	}
	for range n {
		synctest.Wait()
		select {
		case event, ok := <-w.result.ResultChan():
			w.got(event, ok)
		default:
		}
	}
	return "", err
}

func (w *scriptWatch) label() string { return w.name }
func (w *scriptWatch) giveUp()       { w.cancel() }

func (w *scriptWatch) news() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.result == nil && !w.over {
		told := w.told
		w.told = true
		if told {
			return ""
		}
		return "waits"
	}
	events := w.events
	w.events = nil
	return strings.Join(shortened(events), ", ")
}

func (w *scriptWatch) end() {
	w.cancel()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.paused != nil {
		close(w.paused)
		w.paused = nil
	}
	if w.result != nil {
		w.result.Stop()
	}
}

// eventLine is line, with the object's labels and node.
func eventLine(event watch.Event) string {
	object := event.Object
	if cached, ok := object.(runtime.CacheableObject); ok {
		object = cached.GetObject()
	}
	out := line(event)
	if pod, ok := object.(*example.Pod); ok && event.Type != watch.Bookmark {
		for _, key := range slices.Sorted(maps.Keys(pod.Labels)) {
			out += " " + key + "=" + pod.Labels[key]
		}
		if pod.Spec.NodeName != "" {
			out += " spec.nodeName=" + pod.Spec.NodeName
		}
	}
	return out
}

// run of at least so many events of consecutive resourceVersions is shortened.
const longRun = 6

func shortened(events []string) (out []string) {
	for len(events) > 0 {
		n := 1
		for n < len(events) && rvOfLine(events[n-1]) > 0 && rvOfLine(events[n]) == rvOfLine(events[n-1])+1 {
			n++
		}
		if n < longRun {
			out, events = append(out, events[0]), events[1:]
			continue
		}
		out, events = append(out, fmt.Sprintf("%s to %s (%d events)", events[0], events[n-1], n)), events[n:]
	}
	return out
}

// rvOfLine is the resourceVersion of an event's line, 0 for a bookmark.
func rvOfLine(event string) uint64 {
	_, rv, _ := strings.Cut(event, "@")
	rv, _, _ = strings.Cut(rv, " ")
	n, err := strconv.ParseUint(rv, 10, 64)
	if err != nil || strings.HasPrefix(event, "BOOKMARK") {
		return 0
	}
	return n
}

// scriptRead is a GET or a LIST of a script, or many of the same at once.
type scriptRead struct {
	name     string
	cancel   func()
	began    time.Time
	times    int
	outcomes chan string
	told     string
	done     bool

	mu    sync.Mutex
	token string // to go on with
}

func (f *fixture) list(c *script.Command) (string, error) {
	name := c.Word()
	token := ""
	if from, ok := c.Lookup("continue"); ok {
		if r, _ := f.client(from).(*scriptRead); r != nil {
			token = r.token
		}
		if token == "" {
			return "", fmt.Errorf("%s has nothing to continue", from)
		}
	}
	key, opts, err := scope(c)
	if err != nil {
		return "", err
	}
	opts.ResourceVersionMatch = metav1.ResourceVersionMatch(c.Take("match"))
	limit, err := c.Number("limit")
	opts.Predicate.Limit, opts.Predicate.Continue = int64(limit), token
	if err != nil {
		return "", err
	}
	return "", f.readTimes(name, c, func(ctx context.Context, r *scriptRead) string {
		pods := &example.PodList{}
		err := f.cacher.GetList(ctx, key, opts, pods)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.token = pods.Continue; err != nil {
			var status apierrors.APIStatus
			if errors.As(err, &status) {
				r.token = status.Status().Continue
			}
		}
		return describe(pods, err)
	})
}

func (f *fixture) get(c *script.Command) (string, error) {
	name, key := c.Word(), poddata.Prefix+c.Word()
	opts := storage.GetOptions{ResourceVersion: c.Take("rv"), IgnoreNotFound: c.Flag("ignore-not-found")}
	return "", f.readTimes(name, c, func(ctx context.Context, _ *scriptRead) string {
		pod := &example.Pod{}
		err := f.cacher.Get(ctx, key, opts, pod)
		return describe(pod, err)
	})
}

// bookmark sends the last bookmarks of a server that ends, and waits for 2 s at most.
func (f *fixture) bookmark(c *script.Command) (string, error) {
	return "", f.readTimes(c.Word(), c, func(ctx context.Context, _ *scriptRead) string {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		if err := f.cacher.Bookmark(ctx); err != nil {
			return errorLine(err)
		}
		return "taken"
	})
}

// readTimes does the read in goroutines, as often as the command says.
func (f *fixture) readTimes(name string, c *script.Command, read func(context.Context, *scriptRead) string) error {
	times, err := c.Number("times")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	r := &scriptRead{name: name, cancel: cancel, began: time.Now(), times: max(1, int(times))}
	r.outcomes = make(chan string, r.times)
	f.clients = append(f.clients, r)
	for range r.times {
		go func() {
			asked := &atomic.Bool{}
			outcome := read(context.WithValue(ctx, readMark{}, asked), r)
			if asked.Load() {
				outcome += " (from storage)"
			}
			if took := time.Since(r.began); took > 0 {
				outcome += fmt.Sprintf(" after %v", took)
			}
			r.outcomes <- outcome
		}()
	}
	return nil
}

// news tells the outcome once all have one.
func (r *scriptRead) news() string {
	if r.done {
		return ""
	}
	if len(r.outcomes) < r.times {
		waits := "waits"
		if r.times > 1 {
			waits = fmt.Sprintf("%d wait", r.times-len(r.outcomes))
		}
		if waits == r.told {
			return ""
		}
		r.told = waits
		return waits
	}
	r.done = true
	if r.times == 1 {
		return <-r.outcomes
	}
	counts := map[string]int{}
	for range r.times {
		counts[<-r.outcomes]++
	}
	var out []string
	for _, outcome := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, fmt.Sprintf("%d times %s", counts[outcome], outcome))
	}
	return strings.Join(out, "; ")
}

func (r *scriptRead) label() string { return r.name }
func (r *scriptRead) giveUp()       { r.cancel() }
func (r *scriptRead) end()          { r.cancel() }

// scope reads what a LIST and a WATCH have in common: in=PREFIX or at=NAME,
// labels, fields and rv.
func scope(c *script.Command) (key string, opts storage.ListOptions, err error) {
	opts = everything(c.Take("rv"))
	opts.Predicate = poddata.Predicate(c.Take("labels"), c.Take("fields"))
	key = poddata.Prefix + c.Take("in")
	if name, ok := c.Lookup("at"); ok {
		key, opts.Recursive = poddata.Prefix+name, false
	}
	return key, opts, nil
}

// describe is a read's answer in one line.
func describe(object runtime.Object, err error) string {
	if err != nil {
		return errorLine(err)
	}
	if pod, ok := object.(*example.Pod); ok {
		if pod.Name == "" {
			return "nothing"
		}
		return fmt.Sprintf("%s/%s@%s", pod.Namespace, pod.Name, pod.ResourceVersion)
	}
	pods := object.(*example.PodList)
	out := fmt.Sprintf("at %s:", pods.ResourceVersion)
	for _, pod := range pods.Items {
		out += fmt.Sprintf(" %s/%s@%s", pod.Namespace, pod.Name, pod.ResourceVersion)
	}
	switch {
	case pods.Items == nil:
		out += " nil, which encodes as null"
	case len(pods.Items) == 0:
		out += " nothing"
	}
	if pods.Continue != "" {
		more := "more"
		if pods.RemainingItemCount != nil {
			more = fmt.Sprintf("%d more", *pods.RemainingItemCount)
		}
		out += ", and " + more
	}
	return out
}

// errorLine is an error without its text, which says more than it has to say.
func errorLine(err error) string {
	var status apierrors.APIStatus
	switch {
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline exceeded"
	case storage.IsNotFound(err):
		return "not found"
	case !errors.As(err, &status):
		return "error " + err.Error()
	}
	out := fmt.Sprintf("%d %s", status.Status().Code, status.Status().Reason)
	if storage.IsTooLargeResourceVersion(err) {
		out = fmt.Sprintf("%d resourceVersion too large", status.Status().Code)
	}
	if _, seconds := retryAfter(err); seconds > 0 {
		out += fmt.Sprintf(", retry after %d s", seconds)
	}
	return out
}
