// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

var writeBreaches = map[string]breach{
	"loses updates": {
		found: map[string]string{
			"Storage/ConcurrentUpdates": "increments the object counts",
			"Cacher/ConcurrentUpdates":  "increments the object counts",
		},
		make: func() broken { return broken{memory: newMemory(), update: behind()} },
	},
	"overwrites when it creates": {
		found: map[string]string{
			"Storage/ConcurrentCreates": "4 creations of one key have succeeded",
			"Cacher/ConcurrentCreates":  "4 creations of one key have succeeded",
		},
		make: func() broken {
			return broken{memory: newMemory(), create: func(m memory, _ context.Context, key string, obj, out runtime.Object) error {
				return m.overwrite(key, obj.(*example.Pod), out)
			}}
		},
	},
	"believes the suggestion": {
		found: map[string]string{"Cacher/StaleCache": "has undone another"},
		make: func() broken {
			return broken{memory: newMemory(), update: func(m memory, ctx context.Context, key string, out runtime.Object, update storage.UpdateFunc, suggestion runtime.Object) error {
				if suggestion == nil {
					return m.GuaranteedUpdate(ctx, key, out, false, nil, update, nil)
				}
				after, _, err := update(suggestion, storage.ResponseMeta{})
				if err != nil {
					return err
				}
				return m.overwrite(key, after.(*example.Pod), out)
			}}
		},
	},
	"believes that a suggestion needs no change": {
		found: map[string]string{"Cacher/StaleCache": "has changed nothing"},
		make: func() broken {
			return broken{memory: newMemory(), update: func(m memory, ctx context.Context, key string, out runtime.Object, update storage.UpdateFunc, suggestion runtime.Object) error {
				if suggestion != nil {
					if after, _, err := update(suggestion.DeepCopyObject(), storage.ResponseMeta{}); err == nil && equality.Semantic.DeepEqual(after, suggestion) {
						*out.(*example.Pod) = *suggestion.(*example.Pod)
						return nil
					}
				}
				return m.GuaranteedUpdate(ctx, key, out, false, nil, update, nil)
			}}
		},
	},
}

// overwrite puts an object in the place of whatever is there.
func (m memory) overwrite(key string, pod *example.Pod, out runtime.Object) error {
	pod = pod.DeepCopy()
	m.Put(key, pod)
	*out.(*example.Pod) = *pod.DeepCopy()
	return nil
}

// behind updates what an object was before its last update.
func behind() func(memory, context.Context, string, runtime.Object, storage.UpdateFunc, runtime.Object) error {
	var mu sync.Mutex
	before := map[string]*example.Pod{}
	return func(m memory, ctx context.Context, key string, out runtime.Object, update storage.UpdateFunc, _ runtime.Object) error {
		mu.Lock()
		defer mu.Unlock()
		now := &example.Pod{}
		if err := m.Get(ctx, key, storage.GetOptions{}, now); err != nil {
			return err
		}
		base := before[key]
		if base == nil {
			base = now
		}
		before[key] = now
		after, _, err := update(base.DeepCopy(), storage.ResponseMeta{})
		if err != nil {
			return err
		}
		return m.overwrite(key, after.(*example.Pod), out)
	}
}

var progressBreaches = map[string]breach{
	"overtakes with progress": {
		found: map[string]string{"Storage/ProgressOrder": "which said that everything up to", "Storage/ConcurrentProgress": "which said that everything up to"},
		make: watching(func() func(watch.Event) []watch.Event {
			return func(e watch.Event) []watch.Event {
				if e.Type != watch.Bookmark {
					return []watch.Event{e}
				}
				return changed(e, func(pod *example.Pod) { pod.ResourceVersion = version(1 + rvOfEvent(pod)) })
			}
		}),
	},
	"loses an event between bookmarks": {
		found: map[string]string{"Storage/ProgressOrder": "there is a gap"},
		make:  watching(nth(50, "", func(watch.Event) []watch.Event { return nil })),
	},
	"claims progress and does not answer": {
		found: map[string]string{
			"Storage/Progress":               "has not brought a bookmark",
			"Storage/ProgressOfIdleResource": "has not brought a bookmark",
			"Cacher/IdleBookmarks":           "LIST of /pods/",
		},
		make: func() broken {
			m := newMemory()
			m.EndRevisions(false) // which tells a watch of a namespace of writes elsewhere
			return broken{memory: m, progress: func(memory, context.Context) error { return nil }}
		},
	},
	"tells an old version as progress": {
		found: map[string]string{"Storage/Progress": "has not brought a bookmark"},
		make: watching(func() func(watch.Event) []watch.Event {
			return func(e watch.Event) []watch.Event {
				if e.Type != watch.Bookmark {
					return []watch.Event{e}
				}
				return changed(e, func(pod *example.Pod) { pod.ResourceVersion = "1" })
			}
		}),
	},
}

func rvOfEvent(pod *example.Pod) uint64 {
	rv, err := versioner.ObjectResourceVersion(pod)
	if err != nil {
		panic(err)
	}
	return rv
}

var compactionBreaches = map[string]breach{
	"skips what is compacted": {
		found: map[string]string{
			"Compaction/StorageWatch":           "there is a gap",
			"Compaction/StorageWatchAtDeletion": "there is a gap",
			"Compaction/CacherAway":             "LIST",
		},
		make: opening(func(m memory, _ *string, opts *storage.ListOptions) {
			rv, _ := versioner.ParseResourceVersion(opts.ResourceVersion)
			if compacted := uint64(m.CompactRevision()); rv > 0 && rv < compacted {
				opts.ResourceVersion = version(compacted)
			}
		}),
	},
	"fails a compacted watch with another error": {
		found: map[string]string{"Compaction/StorageWatch": "want 410 Expired"},
		make: watching(func() func(watch.Event) []watch.Event {
			return func(e watch.Event) []watch.Event {
				if e.Type == watch.Error {
					e.Object = &metav1.Status{Status: metav1.StatusFailure, Code: 500, Reason: metav1.StatusReasonInternalError}
				}
				return []watch.Event{e}
			}
		}),
	},
	"lists the oldest it has for what is compacted": {
		found: map[string]string{
			"Compaction/StorageList":     "want 410 Expired",
			"Compaction/CacherList":      "want 410 Expired",
			"Compaction/StorageContinue": "want 410 Expired",
			"Compaction/CacherContinue":  "or 410 Expired",
		},
		make: asking(memory.notCompacted),
	},
	"has no way on from a compacted page": {
		found: map[string]string{
			"Compaction/StorageContinue": "without a token to go on",
			"Compaction/CacherContinue":  "without a token to go on",
		},
		make: func() broken {
			return broken{memory: newMemory(), list: func(m memory, ctx context.Context, key string, opts storage.ListOptions, out runtime.Object) error {
				err := m.GetList(ctx, key, opts, out)
				var status *apierrors.StatusError
				if errors.As(err, &status) {
					status.ErrStatus.Continue = ""
				}
				return err
			}}
		},
	},
}

// notCompacted returns the options with the oldest version that there is.
func (m memory) notCompacted(key string, opts storage.ListOptions) storage.ListOptions {
	compacted := m.CompactRevision()
	if rv, _ := versioner.ParseResourceVersion(opts.ResourceVersion); opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact && rv < uint64(compacted) {
		opts.ResourceVersion = version(uint64(compacted))
	}
	if next := opts.Predicate.Continue; next != "" {
		if from, rv, err := storage.DecodeContinue(next, key); err == nil && rv > 0 && rv < compacted {
			opts.Predicate.Continue, _ = storage.EncodeContinue(from, key, compacted)
		}
	}
	return opts
}

// lagging tells each event when the next one comes, and its version as it was
// when it began.
func lagging() broken {
	s := watching(func() func(watch.Event) []watch.Event {
		var held []watch.Event
		return func(e watch.Event) []watch.Event {
			if e.Type == watch.Bookmark {
				return []watch.Event{e}
			}
			out := held
			held = []watch.Event{e}
			return out
		}
	})()
	s.current = func(memory, context.Context) (uint64, error) { return 1, nil }
	return s
}

// withoutDeleted leaves out what is not there any more.
func withoutDeleted(m memory, list *example.PodList) {
	now := m.Objects()
	list.Items = slices.DeleteFunc(list.Items, func(pod example.Pod) bool {
		key, _ := Key(&pod)
		return now[key] == nil
	})
}
