// SPDX-License-Identifier: Apache-2.0

//go:build unix

package relayload

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// writtenKey is the annotation with the time of a pod's last change, in nanoseconds.
const writtenKey = "written"

// state is what an informer has: the version of each pod, by the pod's number.
type state struct {
	// synced: the initial state is there. newest is the time of the latest change that
	// came as an event after it.
	synced atomic.Bool
	newest atomic.Int64

	mu       sync.Mutex
	versions []uint64 // 0: no such pod
}

func (s *state) set(pod int, version uint64) {
	s.mu.Lock()
	s.versions[pod] = version
	s.mu.Unlock()
}

// wrong reports whether the state is another one.
func (s *state) wrong(want []uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range want {
		if s.versions[i] != want[i] {
			return true
		}
	}
	return false
}

// light is an informer that sends what client-go's reflector sends, and decodes no pods.
type light struct {
	state
	fleet  *Fleet
	client *http.Client
	at     string // the version to resume from, "" to begin with the present state
	// listed are the pods of the initial events that come at present.
	listed []bool
}

var errGone = errors.New("410")

// run follows the pods until ctx ends.
func (l *light) run(ctx context.Context) {
	fresh := wait.Backoff{Duration: 800 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 30, Cap: 30 * time.Second}
	backoff := fresh
	for ctx.Err() == nil {
		began := time.Now()
		answered, err := l.watch(ctx)
		switch {
		case errors.Is(err, errGone):
			l.at = ""
		case answered && time.Since(began) > time.Second:
			backoff = fresh // the watch has ended, and the next one follows at once
		default:
			select {
			case <-ctx.Done():
			case <-time.After(backoff.Step()):
			}
		}
	}
}

// watch is one watch, from its request to its end.
func (l *light) watch(ctx context.Context) (answered bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	query := url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {l.at},
		"timeoutSeconds": {strconv.Itoa(300 + rand.IntN(300))},
	}
	if l.at == "" {
		query.Set("sendInitialEvents", "true")
		query.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchNotOlderThan))
		l.listed = make([]bool, len(l.versions))
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, l.fleet.server+"/api/v1/pods?"+query.Encode(), nil)
	if err != nil {
		return false, err
	}
	request.Header.Set("Accept", "application/json")
	response, err := l.client.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusGone:
		return true, errGone
	default:
		return false, errors.New(response.Status)
	}
	lines := bufio.NewReaderSize(response.Body, 16<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return true, err
		}
		if err := l.take(line); err != nil {
			if !errors.Is(err, errGone) {
				l.fleet.note(err)
			}
			return true, err
		}
	}
}

// take takes one event, a line of JSON whose metadata comes first.
func (l *light) take(line []byte) error {
	kind := after(line, `{"type":"`)
	if string(kind) == "ERROR" {
		if bytes.Contains(line, []byte(`"code":410`)) {
			return errGone
		}
		return fmt.Errorf("a watch has ended with %s", line)
	}
	at := after(line, `"resourceVersion":"`)
	version, err := strconv.ParseUint(string(at), 10, 64)
	if err != nil {
		return fmt.Errorf("an event without a resourceVersion: %s", line)
	}
	if l.listed == nil || string(kind) == "BOOKMARK" {
		l.at = string(at)
	}
	if string(kind) == "BOOKMARK" {
		if l.listed != nil && bytes.Contains(line, []byte(metav1.InitialEventsAnnotationKey)) {
			for pod, listed := range l.listed {
				if !listed {
					l.set(pod, 0)
				}
			}
			l.listed = nil
			l.synced.Store(true)
		}
		return nil
	}
	pod, known := l.fleet.pods[string(after(line, `"metadata":{"name":"`))]
	switch {
	case !known:
		return fmt.Errorf("an event of a pod that nobody has made: %.200s", line)
	case string(kind) == "DELETED":
		version = 0
	case l.listed != nil:
		l.listed[pod] = true
	default:
		l.fleet.delivered(&l.state, string(after(line, `"`+writtenKey+`":"`)))
	}
	l.set(pod, version)
	return nil
}

// after returns the string that begins after the mark.
func after(line []byte, mark string) []byte {
	at := bytes.Index(line, []byte(mark))
	if at < 0 {
		return nil
	}
	text, _, _ := bytes.Cut(line[at+len(mark):], []byte{'"'})
	return text
}
