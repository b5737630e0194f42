// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// roomy is a configuration whose window never evicts because of its size.
var roomy = watchcache.Config{History: 75 * time.Second, WindowBytes: 1 << 40, Indexes: indexes}

// indexes are by the label "value", and by each word of the annotation
// "words", in which words may repeat.
var indexes = []watchcache.Index{
	{Name: "value", Values: func(e *watchcache.Element, dst []string) []string {
		if value, ok := e.Labels["value"]; ok {
			dst = append(dst, value)
		}
		return dst
	}},
	{Name: "words", Values: func(e *watchcache.Element, dst []string) []string {
		return append(dst, wordsOf(e)...)
	}},
}

func wordsOf(e *watchcache.Element) []string {
	return strings.Fields(e.Object.(*corev1.Pod).Annotations["words"])
}

// element makes a Pod whose label "value" is value.
func element(key string, rv uint64, value string) *watchcache.Element {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name:            path.Base(key),
		ResourceVersion: strconv.FormatUint(rv, 10),
		Labels:          map[string]string{"value": value},
	}}
	var names watchcache.FieldNames
	return &watchcache.Element{
		Key: key, RV: rv, Object: pod, Labels: pod.Labels,
		Fields: names.Compact(fields.Set{"metadata.name": pod.Name, "value": value}),
	}
}

// annotate sets the words that the index "words" finds the element by.
func annotate(e *watchcache.Element, words string) {
	e.Object.(*corev1.Pod).Annotations = map[string]string{"words": words}
}

func added(key string, rv uint64, value string) watchcache.Change {
	return watchcache.Change{Type: watchcache.Added, Element: element(key, rv, value), RV: rv, Whole: true}
}

func modified(key string, rv uint64, value string) watchcache.Change {
	return watchcache.Change{Type: watchcache.Modified, Element: element(key, rv, value), RV: rv, Whole: true}
}

func deleted(key string, rv uint64, value string) watchcache.Change {
	return watchcache.Change{Type: watchcache.Deleted, Element: element(key, rv, value), RV: rv, Whole: true}
}

// receivedAt sets when the cache got the change.
func receivedAt(at time.Duration, c watchcache.Change) watchcache.Change {
	c.Received = int64(at)
	return c
}

// apply applies changes that must be accepted, of a source that does not report
// where a resourceVersion ends, and returns the outcome of the last.
func apply(t testing.TB, s *watchcache.State, changes ...watchcache.Change) watchcache.Applied {
	t.Helper()
	return applyAll(t, s, true, changes)
}

// applyPart is apply for a source that reports, by Progress, where a
// resourceVersion ends.
func applyPart(t testing.TB, s *watchcache.State, changes ...watchcache.Change) watchcache.Applied {
	t.Helper()
	return applyAll(t, s, false, changes)
}

func applyAll(t testing.TB, s *watchcache.State, whole bool, changes []watchcache.Change) watchcache.Applied {
	t.Helper()
	var applied watchcache.Applied
	for _, c := range changes {
		c.Whole = whole
		var err error
		applied, err = s.Apply(c)
		require.NoError(t, err)
	}
	return applied
}

// positionAfter returns where a reader of everything goes on that has seen all up to rv.
func positionAfter(s *watchcache.State, rv uint64) (watchcache.Position, error) {
	p, _, err := s.PositionFor(rv, &watchcache.Interest{})
	return p, err
}

// at returns the snapshot at rv, which must be there.
func at(t testing.TB, s *watchcache.State, rv uint64) *watchcache.Snapshot {
	t.Helper()
	snapshot, err := s.At(rv)
	require.NoError(t, err)
	return snapshot
}

// show writes an element as key=value@rv.
func show(e *watchcache.Element) string {
	return fmt.Sprintf("%s=%s@%d", e.Key, e.Labels["value"], e.RV)
}

// contents writes a snapshot's elements in order.
func contents(s *watchcache.Snapshot) string {
	return ranged(s, "", "")
}

func ranged(s *watchcache.Snapshot, prefix, from string) string {
	var out []string
	s.Range(prefix, from, func(e *watchcache.Element) bool {
		out = append(out, show(e))
		return true
	})
	return strings.Join(out, " ")
}

func rangedIndex(s *watchcache.Snapshot, index, value, prefix, from string) (string, bool) {
	var out []string
	ok := s.RangeIndex(index, value, prefix, from, func(e *watchcache.Element) bool {
		out = append(out, show(e))
		return true
	})
	return strings.Join(out, " "), ok
}

// showEvent writes an event as position:TYPE element, with what it replaced.
func showEvent(e *watchcache.Event) string {
	out := fmt.Sprintf("%d:%s %s", e.Position, e.Type, show(e.Element))
	if e.Previous != nil {
		out += " was " + show(e.Previous)
	}
	return out
}

// since reads up to most events from position p on.
func since(s *watchcache.State, p watchcache.Position, most int) ([]*watchcache.Event, uint64, error) {
	buf := make([]*watchcache.Event, most)
	n, through, err := s.Since(p, buf)
	return buf[:n], through, err
}
