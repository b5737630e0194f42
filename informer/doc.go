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
// Controller, or your own lists and watches. It supports all of metav1.ListOptions with the
// semantics of the API server, except:
//
//   - client-go streams the initial state (KEP-3157) if its feature gate WatchListClient is on and
//     the storage reports progress. Otherwise it lists in pages.
//   - Options that don't parse or fit together return a BadRequest (400) with the option and its
//     value, where an API server may return Invalid (422).
//   - A watch without timeoutSeconds ends only with its context. An API server ends it after one to
//     two times --min-request-timeout.
//   - It does not authorize, audit or queue requests. Code with a reference to the cache may read
//     it.
//   - Field selectors select fields of cacher.Config.GetAttrsFunc, i.e. of the internal version. If
//     GetAttrsFunc supports an empty object, other fields are a BadRequest.
//
// # Objects
//
// Objects have the type that the cache holds, in an API server usually the internal version,
// neither converted to a served version nor changed by a Decorator. TypeMeta is as stored, empty
// for internal types and set for unstructured objects.
//
// Lists and watches return deep copies, which the caller may modify. As always with client-go,
// don't modify the objects of an informer, which its handlers and listers share. The cache, other
// informers and the server's clients don't share them.
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
//   - After a watch's timeoutSeconds, client-go resumes at its last resourceVersion, which
//     bookmarks keep recent.
//   - If the resourceVersion is older than the cache's window, or the cache relists, the watch gets
//     410 and client-go relists or streams all objects. Handlers see the differences, and a
//     cache.DeletedFinalStateUnknown for a missed deletion.
//   - An informer buffers events for a slow handler. The cache parks the watch of another slow
//     receiver, which catches up or, behind the window, gets 410.
//   - While the cache isn't ready, requests get 429, and client-go retries with a backoff of 0.8 s
//     to more than 30 s. No event is lost; call Cacher.Wait before running the informer to start
//     faster.
//   - When the cache stops, all watches end, and later requests get 429. Stop informers before the
//     cache, because one in backoff stops only after it.
//   - With an idle timeout, a list or watch wakes the cache, and an open watch, hence a running
//     informer, keeps it awake.
package informer
