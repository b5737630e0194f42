// SPDX-License-Identifier: Apache-2.0

// Package informer provides client-go informers over an API server's own caches, for controllers in
// the same process. They replace a loopback client, without HTTP and encoding.
//
// # Use
//
// To create an informer, here of one namespace and one label selector:
//
//	devices := informer.New(c, 0, nil, informer.InNamespace("osaka"),
//		informer.WithTweak(func(o *metav1.ListOptions) { o.LabelSelector = "tier=edge" }))
//	devices.AddEventHandler(handler)
//	go devices.RunWithContext(ctx)
//
// The cache c is the result of cacher.New, or of [For], which returns the cache of a
// genericregistry.Store if the server caches the resource:
//
//	c, ok := informer.For(store.Storage.Storage)
//
// The informer lists and watches through a [ListerWatcher]. Use one directly for a Reflector, a
// Controller, an informer with other settings, or your own lists and watches. It supports all of
// metav1.ListOptions with the semantics of the API server, except:
//
//   - client-go streams the initial state (KEP-3157) if its feature gate WatchListClient is on and
//     the storage reports progress. Otherwise it lists in pages.
//   - Options that do not parse or contradict each other return a BadRequest (400) with the option
//     and its value. An API server returns Invalid (422) for contradictions.
//   - A watch without timeoutSeconds ends only with its context. An API server ends it after one to
//     two times --min-request-timeout.
//   - There is no authorization, priority and fairness, or audit. Code with a reference to the
//     cache may read it.
//   - Field selectors name fields of the internal version, as returned by
//     cacher.Config.GetAttrsFunc. If GetAttrsFunc supports an empty object, other fields are a
//     BadRequest.
//
// # Objects
//
// Objects have the type that the cache holds, in an API server usually the internal version. They
// are not converted to a served version, nor changed by the Decorator of a registry's Store.
// TypeMeta is as stored: empty for internal types, set for unstructured objects.
//
// Lists and watches return deep copies, which the caller may modify. As always with client-go, do
// not modify the objects of an informer: its handlers and listers share them. Even then the cache,
// other informers and the server's clients are not affected.
//
// # Cost
//
// An event costs one deep copy and one handover between goroutines, about 0.3 µs. A listed object
// costs one deep copy more than cacher.GetList. The watch's single goroutine copies up to 16 events
// ahead; neither the dispatcher nor other watchers wait. An informer holds a second copy of all
// selected objects; for occasional reads, a list or the cache's own Get takes less memory.
//
// # Failures
//
//   - timeoutSeconds of a watch elapse: client-go resumes at its last resourceVersion, which
//     bookmarks keep recent.
//   - The resourceVersion is older than the cache's window, or the cache relisted: the watch gets
//     410, and client-go relists or streams all objects. Handlers see the differences; a missed
//     deletion is a cache.DeletedFinalStateUnknown.
//   - A handler is slow: the informer buffers its events. A slow receiver of a ListerWatcher's
//     watch is parked by the cache: it catches up, or gets 410 after it falls behind the window.
//   - The cache is not ready: requests get 429, and client-go retries with a backoff of 0.8 s to 30
//     s and more. No event is lost, but calling Cacher.Wait before running the informer is faster.
//   - The cache stops: all watches end, and later requests get 429. Stop informers before the
//     cache: an informer in backoff stops only after it.
//   - The cache has an idle timeout: a list or watch wakes it, and an open watch, hence a running
//     informer, keeps it awake.
package informer
