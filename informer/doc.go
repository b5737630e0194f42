// SPDX-License-Identifier: Apache-2.0

// Package informer gives the controllers of an API server client-go's
// informers of the server's own caches: in the same process, without HTTP and
// without encoding. It takes the place of a loopback client.
//
// # Use
//
// An informer, of a namespace and a selection if wanted:
//
//	devices := informer.New(c, 0, nil, informer.InNamespace("osaka"),
//		informer.WithTweak(func(o *metav1.ListOptions) { o.LabelSelector = "tier=edge" }))
//	devices.AddEventHandler(handler)
//	go devices.RunWithContext(ctx)
//
// The cache c is what cacher.New returns, or what a server's decorator has
// given a resource: store.Storage.Storage.(*cacher.Cacher) of its
// genericregistry.Store.
//
// [ListerWatcher] is what feeds it, for a Reflector, a Controller or an
// informer with other settings, or to list and watch by hand: it takes
// metav1.ListOptions, all of them, and answers as the API server does over
// HTTP.
//
//   - Selectors, resourceVersion, resourceVersionMatch, limit, continue,
//     sendInitialEvents, bookmarks and timeoutSeconds mean what the Kubernetes
//     API concepts say. client-go streams the initial state (KEP-3157) where
//     its feature gate WatchListClient is on and the storage reports progress,
//     and else lists in pages.
//   - What does not parse or does not fit together is a BadRequest (400) that
//     names the option and its value. An API server says Invalid (422) where
//     options don't fit together.
//   - A watch without timeoutSeconds ends with its context only; an API server
//     ends it after a time of its own.
//   - Nobody is asked for authorization, admission or priority, and nothing is
//     audited: who has the cache may read it.
//   - Field selectors name the fields that cacher.Config.GetAttrsFunc gives,
//     which are those of the internal version. Another field is refused if
//     GetAttrsFunc can tell the fields of an empty object.
//
// # Objects
//
// They are of the type that the cache holds, which in an API server is the
// internal version as a rule: not converted to a served one, and not changed
// by the Decorator of a registry's Store. Their TypeMeta is as stored: empty
// for internal types, set for unstructured objects.
//
// All that a list or a watch brings is private: a deep copy, free to be kept
// and to be written. What an informer has is shared by its handlers and
// listers, as ever with client-go: they must not write to it, but whatever
// they do, the cache, other informers and the server's clients don't see it.
//
// # Cost
//
// An event costs its receiver one deep copy of the object and a hand-over
// between goroutines of about 0.3 µs; a listed object one deep copy, and what
// cacher.GetList takes; an object of 18 allocations is copied in 1.5 to 2 µs.
// BenchmarkWatch and BenchmarkList measure that beside the cache itself. The
// copy is made on the watch's own goroutine, up to 16 events ahead: neither
// the dispatcher nor other watchers wait. A watch at rest costs that one
// goroutine. An informer holds a second copy of all that it selects; for a
// look now and then, a list, or the cache's own Get, takes less.
//
// # What happens when
//
//   - A watch's time is up: client-go resumes it where it was. Bookmarks keep
//     that position fresh, however quiet the resource is.
//   - The position has left the cache's window, or the cache had to list its
//     storage anew: 410, and client-go lists or streams everything anew.
//     Handlers hear of the differences; of an object whose deletion was missed
//     as cache.DeletedFinalStateUnknown.
//   - A handler is slow: the informer buffers for it. A receiver of a bare
//     watch that is slow is parked by the cache, and catches up, or is told
//     410 when it is behind the window.
//   - The cache is not ready: 429, and client-go tries again, with pauses of
//     0.8 s to 30 s and more. Nothing is lost, but to wait for the cache
//     before an informer is run (Cacher.Wait) is quicker.
//   - The cache stops: all watches end, and everything after that is 429. An
//     informer keeps what it has and tries on: end it first, or it may take as
//     long as its pause to end.
//   - A cache that sleeps while nobody uses it: a list or a watch wakes it, and
//     an open watch, and so an informer that runs, is use.
package informer
