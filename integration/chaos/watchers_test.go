// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/internal/judge"
)

// start is how a watcher begins when it has nothing to resume from.
type start int

const (
	afterList  start = iota // with a consistent list
	watchList               // with a consistent state, whose end is marked
	fromAny                 // with any state, whose end is marked
	fromZero                // with any state, whose end is not marked
	timedWatch              // with a list; each watch ends after a few seconds
	starts
)

func startOf(i int) start { return start(i/2) % starts }

// pauseOf makes a few of the clients slow, so slow that events heap up before them.
func pauseOf(i int) time.Duration {
	if i%7 == 3 {
		return 250 * time.Millisecond
	}
	return 0
}

// watchSeconds is how long a timedWatch goes on.
const watchSeconds = 4

// watcher keeps a watch open as a careful client does: it resumes where a watch
// broke, and begins again only when it is told 410, or when it has no version to
// resume from.
type watcher struct {
	clients   *clients
	name      string
	client    *versioned.Clientset
	selection judge.Selection
	start     start
	// pause is how long the client takes for each event, until it has to hurry.
	pause time.Duration
	mu    struct {
		sync.Mutex
		streams []judge.Stream
		// resumable: the client has the state of the last version that it has seen.
		resumable bool
		said      []string
	}
}

func newWatcher(c *clients, name string, client *versioned.Clientset, s judge.Selection, start start) *watcher {
	return &watcher{clients: c, name: name, client: client, selection: s, start: start}
}

func (w *watcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := w.once(ctx)
		if ctx.Err() != nil {
			return
		}
		w.note(err)
		if err != nil {
			hold(ctx, retryPause)
		}
	}
}

// errRefused: a watch or a list was not begun.
var errRefused = errors.New("refused")

// once opens one watch and reads it to its end, which the error tells; nil: it was
// closed.
func (w *watcher) once(ctx context.Context) error {
	options, stream, err := w.request(ctx)
	if err != nil {
		return errors.Join(errRefused, err)
	}
	opened, err := w.client.FleetV1().Devices(w.selection.Namespace).Watch(ctx, options)
	if err != nil {
		return errors.Join(errRefused, err)
	}
	defer opened.Stop()
	w.begin(stream)
	for event := range opened.ResultChan() {
		if event.Type == watch.Error {
			return apierrors.FromObject(event.Object)
		}
		w.take(event)
		if w.pause > 0 {
			w.clients.dawdle(ctx, w.pause)
		}
	}
	return nil
}

// request makes the request of the next watch.
func (w *watcher) request(ctx context.Context) (metav1.ListOptions, judge.Stream, error) {
	options := metav1.ListOptions{AllowWatchBookmarks: true}
	if w.selection.Labels != nil {
		options.LabelSelector = w.selection.Labels.String()
	}
	if w.selection.Fields != nil {
		options.FieldSelector = w.selection.Fields.String()
	}
	if w.start == timedWatch {
		seconds := int64(watchSeconds)
		options.TimeoutSeconds = &seconds
	}
	stream := judge.Stream{Name: w.name, Selection: w.selection}
	if to, resumable := w.position(); resumable {
		options.ResourceVersion, stream.From = strconv.FormatInt(to, 10), to
		return options, stream, nil
	}
	marked := true
	switch w.start {
	case watchList:
		stream.Begin, stream.From = judge.Marked, w.clients.reached.Load()
		options.SendInitialEvents, options.ResourceVersionMatch = &marked, metav1.ResourceVersionMatchNotOlderThan
	case fromAny:
		stream.Begin, options.ResourceVersion = judge.Marked, "0"
		options.SendInitialEvents, options.ResourceVersionMatch = &marked, metav1.ResourceVersionMatchNotOlderThan
	case fromZero:
		// With bookmarks the server would mark the end of the state.
		stream.Begin, options.ResourceVersion, options.AllowWatchBookmarks = judge.Unmarked, "0", false
	default:
		rv, err := w.list(ctx, options)
		if err != nil {
			return options, stream, err
		}
		options.ResourceVersion, stream.From = strconv.FormatInt(rv, 10), rv
	}
	return options, stream, nil
}

// list gives the version of a consistent list, which is judged.
func (w *watcher) list(ctx context.Context, selected metav1.ListOptions) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer := judge.Read{Kind: "LIST of watcher " + w.name, Begun: time.Now(), Fresh: true, Selection: w.selection}
	list, err := w.client.FleetV1().Devices(w.selection.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selected.LabelSelector, FieldSelector: selected.FieldSelector})
	if err != nil {
		return 0, err
	}
	answer.RV, answer.Items = judge.Version(list.ResourceVersion), judge.ItemsOf(list)
	w.clients.noteRead(answer)
	return answer.RV, nil
}

// position is the last version that the watcher has seen, and whether it has the
// state of it.
func (w *watcher) position() (int64, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.mu.streams) == 0 {
		return 0, false
	}
	return w.mu.streams[len(w.mu.streams)-1].To(), w.mu.resumable
}

func (w *watcher) begin(s judge.Stream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.resumable = s.Begin == judge.After
	w.mu.streams = append(w.mu.streams, s)
}

func (w *watcher) take(event watch.Event) {
	device, ok := event.Object.(*fleetv1.Device)
	if !ok {
		// No judge lets an event of version -1 pass.
		device = &fleetv1.Device{Spec: fleetv1.DeviceSpec{Model: fmt.Sprintf("a %T", event.Object)}}
	}
	one := judge.EventOf(event.Type, device)
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.mu.streams[len(w.mu.streams)-1]
	s.Events = append(s.Events, one)
	if event.Type == watch.Bookmark && (s.Begin != judge.Marked || one.Ends) {
		w.mu.resumable = true
	}
}

// note counts how a watch ended.
func (w *watcher) note(err error) {
	c := &w.clients.counts
	switch {
	case isExpired(err):
		c.expired.Add(1)
	case errors.Is(err, errRefused):
		c.refused.Add(1)
		return
	default:
		c.broken.Add(1)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if isExpired(err) {
		w.mu.resumable = false
	}
	if err != nil {
		w.mu.said = append(w.mu.said, err.Error())
	}
}

func isExpired(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code == http.StatusGone
}

// seen is what a judge needs of a watcher: its streams, and how far it has come.
func (w *watcher) seen() ([]judge.Stream, int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	streams := make([]judge.Stream, len(w.mu.streams))
	copy(streams, w.mu.streams)
	to := int64(0)
	if len(streams) > 0 {
		to = streams[len(streams)-1].To()
	}
	return streams, to
}
