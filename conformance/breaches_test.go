// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"
)

// breaches are the storages, by what is wrong with them.
func breaches() map[string]breach {
	all := map[string]breach{}
	for _, some := range []map[string]breach{watchBreaches, readBreaches, writeBreaches, progressBreaches, compactionBreaches} {
		for name, b := range some {
			all[name] = b
		}
	}
	return all
}

// watching makes a storage of which each watch changes its events by a
// function of its own.
func watching(change func() func(watch.Event) []watch.Event) func() broken {
	return func() broken {
		return broken{memory: newMemory(), watch: func(m memory, ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
			w, err := m.Watch(ctx, key, opts)
			if err != nil {
				return nil, err
			}
			return alter(w, change()), nil
		}}
	}
}

// opening makes a storage that is asked for another watch than the one that was asked for.
func opening(change func(m memory, key *string, opts *storage.ListOptions)) func() broken {
	return func() broken {
		return broken{memory: newMemory(), watch: func(m memory, ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
			change(m, &key, &opts)
			return m.Watch(ctx, key, opts)
		}}
	}
}

// asking makes a storage that is asked for another list than the one that was asked for.
func asking(change func(m memory, key string, opts storage.ListOptions) storage.ListOptions) func() broken {
	return func() broken {
		return broken{memory: newMemory(), list: func(m memory, ctx context.Context, key string, opts storage.ListOptions, out runtime.Object) error {
			return m.GetList(ctx, key, change(m, key, opts), out)
		}}
	}
}

// answering makes a storage whose lists are changed before they are returned.
func answering(change func(m memory, list *example.PodList)) func() broken {
	return func() broken {
		return broken{memory: newMemory(), list: func(m memory, ctx context.Context, key string, opts storage.ListOptions, out runtime.Object) error {
			if err := m.GetList(ctx, key, opts, out); err != nil {
				return err
			}
			change(m, out.(*example.PodList))
			return nil
		}}
	}
}

// moved returns a resourceVersion so many revisions later.
func moved(resourceVersion string, by int64) string {
	rv, _ := versioner.ParseResourceVersion(resourceVersion)
	return version(uint64(int64(rv) + by))
}

// nth calls change for the nth event of a watch, counted from 1, that is a
// change of the given kind ("": of any).
func nth(n int, kind watch.EventType, change func(watch.Event) []watch.Event) func() func(watch.Event) []watch.Event {
	return func() func(watch.Event) []watch.Event {
		at := 0
		return func(e watch.Event) []watch.Event {
			if e.Type == kind || (kind == "" && e.Type != watch.Bookmark && e.Type != watch.Error) {
				at++
				if at == n {
					return change(e)
				}
			}
			return []watch.Event{e}
		}
	}
}

// changed returns the event with another content.
func changed(e watch.Event, change func(*example.Pod)) []watch.Event {
	pod := e.Object.(*example.Pod).DeepCopy()
	change(pod)
	return []watch.Event{{Type: e.Type, Object: pod}}
}

var watchBreaches = map[string]breach{
	"drops an event": {
		found: map[string]string{
			"Storage/EventOnce":           "there was no event for MODIFIED /pods/a/1",
			"Cacher/EventOnce":            "there was no event for MODIFIED /pods/a/1",
			"Cacher/ExactList":            "expected was",
			"Cacher/ExactPages":           "expected was",
			"Cacher/LabelTransitions":     "must bring MODIFIED /pods/a/1",
			"Cacher/FieldTransitions":     "must bring MODIFIED /pods/a/1",
			"Cacher/Scopes":               "must bring MODIFIED /pods/a/1",
			"Cacher/WatchFromEachVersion": "there is a gap: MODIFIED /pods/a/1",
		},
		make: watching(nth(4, "", func(watch.Event) []watch.Event { return nil })),
	},
	"drops the eighth event": {
		found: map[string]string{"Cacher/ParkedTooLong": "there is a gap"},
		make:  watching(nth(8, "", func(watch.Event) []watch.Event { return nil })),
	},
	"drops the second event": {
		found: map[string]string{"Cacher/ConcurrentLists": "expected was"},
		make:  watching(nth(2, "", func(watch.Event) []watch.Event { return nil })),
	},
	"repeats an event": {
		found: map[string]string{"Storage/EventOnce": "there were 2 events for MODIFIED /pods/a/1"},
		make:  watching(nth(4, "", func(e watch.Event) []watch.Event { return []watch.Event{e, e} })),
	},
	"exchanges two events": {
		found: map[string]string{
			"Storage/EventOrder": "is not above",
			"Cacher/EventOrder":  "must bring an event of /pods/a/end",
		},
		make: watching(exchanged),
	},
	"tells a creation as a change": {
		found: map[string]string{"Storage/EventTypes": "expected was ADDED"},
		make:  watching(nth(2, watch.Added, as(watch.Modified))),
	},
	"tells a deletion as a change": {
		found: map[string]string{
			"Storage/EventTypes":   "expected was MODIFIED",
			"Storage/DeletedEvent": "there was no DELETED for",
			"Cacher/EventTypes":    "/pods/",
			"Cacher/DeletedEvent":  "/pods/",
		},
		make: watching(nth(1, watch.Deleted, as(watch.Modified))),
	},
	"deletes with the old resourceVersion": {
		found: map[string]string{"Storage/DeletedEvent": "DELETED /pods/a/2 at ", "Storage/EventOrder": "DELETED /pods/a/2 at "},
		make: watching(nth(1, watch.Deleted, func(e watch.Event) []watch.Event {
			return changed(e, func(pod *example.Pod) { pod.ResourceVersion = "2" })
		})),
	},
	"deletes without the last content": {
		found: map[string]string{"Storage/DeletedEvent": "expected was", "Cacher/DeletedEvent": "expected was"},
		make: watching(nth(1, watch.Deleted, func(e watch.Event) []watch.Event {
			return changed(e, func(pod *example.Pod) { pod.Labels = nil })
		})),
	},
	"tells a change without its content": {
		found: map[string]string{
			"Storage/EventContent": "written was",
			"Cacher/EventContent":  "written was",
		},
		make: watching(nth(2, watch.Modified, func(e watch.Event) []watch.Event {
			return changed(e, func(pod *example.Pod) { pod.Labels = nil })
		})),
	},
	"tells nothing of the first write after the start": {
		found: map[string]string{"Storage/WatchFromEachVersion": "there is a gap", "Cacher/BrokenWatches": "/pods/"},
		make:  watching(nth(1, "", func(watch.Event) []watch.Event { return nil })),
	},
	"tells a watch what was before its start": {
		found: map[string]string{"Storage/WatchFromEachVersion": "is too much"},
		make: opening(func(_ memory, _ *string, opts *storage.ListOptions) {
			if rv, _ := versioner.ParseResourceVersion(opts.ResourceVersion); rv > 1 {
				opts.ResourceVersion = version(rv - 1)
			}
		}),
	},
	"leaves out an initial event": {
		found: map[string]string{"Storage/InitialEvents": "uid \"uid-0\") is missing"},
		make:  watching(nth(1, watch.Added, func(watch.Event) []watch.Event { return nil })),
	},
	"does not end the initial events": {
		found: map[string]string{"Storage/InitialEvents": "without the annotation"},
		make: watching(nth(1, watch.Bookmark, func(e watch.Event) []watch.Event {
			return changed(e, func(pod *example.Pod) { pod.Annotations = nil })
		})),
	},
	"ignores selectors": {
		found: map[string]string{"Storage/LabelTransitions": "is too much", "Storage/FieldTransitions": "is too much"},
		make: opening(func(_ memory, _ *string, opts *storage.ListOptions) {
			opts.Predicate.Label, opts.Predicate.Field = labels.Everything(), fields.Everything()
		}),
	},
	"takes a namespace for the prefix of another": {
		found: map[string]string{"Storage/Scopes": "ADDED /pods/b/1"},
		make: opening(func(_ memory, key *string, opts *storage.ListOptions) {
			if opts.Recursive && strings.HasPrefix(*key, Prefix+"a/") {
				*key = Prefix
			}
		}),
	},
	"does not signal initialization": {
		found: map[string]string{"Storage/InitializationSignal": "has not signalled within"},
		make: func() broken {
			return broken{memory: newMemory(), watch: func(m memory, ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
				return m.Watch(flowcontrol.WithInitializationSignal(ctx, flowcontrol.NewInitializationSignal()), key, opts)
			}}
		},
	},
	"loses the last creation of the script": {
		found: map[string]string{"Cacher/InitialEvents": "/pods/b/2"},
		make:  watching(nth(7, watch.Added, func(watch.Event) []watch.Event { return nil })),
	},
	"loses one of many events": {
		found: map[string]string{"Storage/ConcurrentEvents": "there is a gap", "Cacher/ConcurrentEvents": "/pods/a/"},
		make:  watching(nth(50, "", func(watch.Event) []watch.Event { return nil })),
	},
	"loses what comes after the script": {
		found: map[string]string{"Cacher/TooOld": "GET of /pods/a/flush"},
		make:  watching(nth(22, "", func(watch.Event) []watch.Event { return nil })),
	},
	"loses what comes in a burst": {
		found: map[string]string{
			"Cacher/Parking":            "must bring",
			"Cacher/BookmarkOrder":      "MODIFIED /pods/a/end",
			"Cacher/ResumeFromBookmark": "MODIFIED /pods/a/end",
		},
		make: watching(nth(12, "", func(watch.Event) []watch.Event { return nil })),
	},
}

// exchanged lets the third event come after the fourth.
func exchanged() func(watch.Event) []watch.Event {
	at, held := 0, watch.Event{}
	return func(e watch.Event) []watch.Event {
		if e.Type == watch.Bookmark {
			return []watch.Event{e}
		}
		switch at++; at {
		case 3:
			held = e
			return nil
		case 4:
			return []watch.Event{e, held}
		}
		return []watch.Event{e}
	}
}

func as(kind watch.EventType) func(watch.Event) []watch.Event {
	return func(e watch.Event) []watch.Event { return []watch.Event{{Type: kind, Object: e.Object}} }
}

var readBreaches = map[string]breach{
	"lists the latest for an exact version": {
		found: map[string]string{"Storage/ExactList": "says that it is at"},
		make: asking(func(_ memory, _ string, opts storage.ListOptions) storage.ListOptions {
			opts.ResourceVersion, opts.ResourceVersionMatch = "", ""
			return opts
		}),
	},
	"leaves out what is deleted today": {
		found: map[string]string{"Storage/ExactList": "object", "Storage/ExactPages": "object"},
		make:  answering(withoutDeleted),
	},
	"pages through what is there now": {
		found: map[string]string{"Storage/ExactPages": "the page from object 2"},
		make: asking(func(_ memory, key string, opts storage.ListOptions) storage.ListOptions {
			if from, _, err := storage.DecodeContinue(opts.Predicate.Continue, key); err == nil {
				opts.Predicate.Continue, _ = storage.EncodeContinue(from, key, -1)
			}
			return opts
		}),
	},
	"lists all objects but the first": {
		found: map[string]string{"Cacher/FilledStorage": "a LIST of any version from a cache that has just begun"},
		make: answering(func(_ memory, list *example.PodList) {
			if len(list.Items) > 0 {
				list.Items = list.Items[1:]
			}
		}),
	},
	"counts wrong what remains": {
		found: map[string]string{"Storage/ExactPages": "objects remain, it is"},
		make: answering(func(_ memory, list *example.PodList) {
			if list.RemainingItemCount != nil {
				*list.RemainingItemCount++
			}
		}),
	},
	"lists nothing as of a moment later": {
		found: map[string]string{"Storage/ConcurrentLists": "is missing"},
		make: answering(func(_ memory, list *example.PodList) {
			if len(list.Items) == 0 {
				list.ResourceVersion = moved(list.ResourceVersion, 1)
			}
		}),
	},
	"lists nothing as of a moment before": {
		found: map[string]string{"Storage/ConcurrentVersions": "a LIST of /pods/nothing"},
		make: answering(func(_ memory, list *example.PodList) {
			if len(list.Items) == 0 && list.ResourceVersion != "1" {
				list.ResourceVersion = moved(list.ResourceVersion, -1)
			}
		}),
	},
	"gets what was": {
		found: map[string]string{"Storage/ReadYourWrites": "a GET"},
		make: func() broken {
			var mu sync.Mutex
			first := map[string]*example.Pod{}
			return broken{memory: newMemory(), get: func(m memory, ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
				if err := m.Get(ctx, key, opts, out); err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				if first[key] == nil {
					first[key] = out.(*example.Pod).DeepCopy()
				}
				*out.(*example.Pod) = *first[key].DeepCopy()
				return nil
			}}
		},
	},
	"lists what was": {
		found: map[string]string{"Storage/ReadYourWrites": "a LIST after the write"},
		make: asking(func(m memory, _ string, opts storage.ListOptions) storage.ListOptions {
			rv, _ := m.GetCurrentResourceVersion(context.Background())
			if opts.ResourceVersion != "" || opts.Predicate.Continue != "" || rv <= 2 {
				return opts
			}
			then := exactly(rv - 1).options()
			then.Predicate = opts.Predicate
			return then
		}),
	},
	"tells a stale version": {
		found: map[string]string{"Storage/CurrentVersion": "GetCurrentResourceVersion is", "Storage/ConcurrentVersions": "GetCurrentResourceVersion is", "Cacher/CurrentVersion": "GetCurrentResourceVersion is"},
		make: func() broken {
			var calls atomic.Int64
			return broken{memory: newMemory(), current: func(m memory, ctx context.Context) (uint64, error) {
				rv, err := m.GetCurrentResourceVersion(ctx)
				if calls.Add(1) > 5 {
					rv--
				}
				return rv, err
			}}
		},
	},
	"tells a version to come": {
		found: map[string]string{"Storage/CurrentVersion": "before the write at"},
		make: func() broken {
			return broken{memory: newMemory(), current: func(m memory, ctx context.Context) (uint64, error) {
				rv, err := m.GetCurrentResourceVersion(ctx)
				return rv + 1, err
			}}
		},
	},
	"tells a stale version and lags": {
		found: map[string]string{
			"Cacher/ConsistentReads":    "the watch cache was found to be wrong",
			"Cacher/ReadYourWrites":     "the watch cache was found to be wrong",
			"Cacher/ConcurrentVersions": "GetCurrentResourceVersion is 1 after",
		},
		make: lagging,
	},
}
