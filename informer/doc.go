// SPDX-License-Identifier: Apache-2.0

// Package informer gives the controllers of an API server client-go's informers
// of the server's own caches: in the same process, without HTTP and without
// encoding, in place of a loopback client.
//
// # Use
//
// To make an informer, here of one namespace and one label selector:
//
//	devices := informer.New(c, 0, nil, informer.InNamespace("osaka"),
//		informer.WithTweak(func(o *metav1.ListOptions) { o.LabelSelector = "tier=edge" }))
//	devices.AddEventHandler(handler)
//	go devices.RunWithContext(ctx)
//
// The cache c is one that cacher.New has made, or that of a server's resource:
// [For] returns the cache of a genericregistry.Store, if the server caches the
// resource.
//
//	c, ok := informer.For(store.Storage.Storage)
//
// The informer lists and watches through a [ListerWatcher]. Use one directly
// for a Reflector, a Controller or an informer with other settings, or to list
// and watch by hand. A ListerWatcher supports all of metav1.ListOptions, and
// answers as the API server does over HTTP, with these notes:
//
//   - Selectors, resourceVersion, resourceVersionMatch, limit, continue,
//     sendInitialEvents, bookmarks and timeoutSeconds mean what the Kubernetes
//     API concepts say. client-go streams the initial state (KEP-3157) where
//     its feature gate WatchListClient is on and the storage reports progress,
//     and lists in pages otherwise.
//   - Options that do not parse or do not fit together are a BadRequest (400)
//     that names the option and its value. An API server returns Invalid (422)
//     if options do not fit together.
//   - A watch without timeoutSeconds ends only with its context; an API server
//     ends such a watch after one to two times its --min-request-timeout.
//   - There is no authorization, no priority and fairness, and no audit: code
//     that has the cache may read it.
//   - Field selectors name the fields that cacher.Config.GetAttrsFunc returns,
//     which are those of the internal version. Other fields are a BadRequest,
//     if GetAttrsFunc returns the fields of an empty object.
//
// # Objects
//
// Objects have the type that the cache holds, which in an API server is usually
// the internal version. They are not converted to a served version, and not
// changed by the Decorator of a registry's Store. Their TypeMeta is as stored:
// empty for internal types, set for unstructured objects.
//
// Lists and watches return deep copies, which the caller may keep and write to.
// The objects in an informer are shared by its handlers and listers, as always
// with client-go, and must not be written to; but even a write would not reach
// the cache, other informers or the server's clients.
//
// # Cost
//
// An event costs its receiver one deep copy of the object and a hand-over
// between goroutines, about 0.3 µs; a listed object costs one deep copy beyond
// cacher.GetList. The copy is made on the watch's own goroutine, its only one, up to 16
// events ahead: neither the dispatcher nor other watchers wait. An informer holds a second
// copy of all objects that it selects; for occasional reads, a list or the cache's own Get
// takes less memory.
//
// # When something goes wrong
//
//   - A watch reaches its timeoutSeconds: client-go resumes it at its last
//     resourceVersion, which bookmarks keep recent.
//   - The resourceVersion is older than the cache's window, or the cache had to
//     list its storage again: 410, and client-go lists or streams all objects
//     again. Handlers are called for the differences; for an object whose
//     deletion was missed, with a cache.DeletedFinalStateUnknown.
//   - A handler is slow: the informer buffers events for it. A slow receiver of
//     a watch made with ListerWatcher is parked by the cache: it catches up, or
//     gets a 410 when it has fallen behind the window.
//   - The cache is not ready: 429, and client-go tries again, with pauses of
//     0.8 s to 30 s and more. No event is lost, but waiting for the cache
//     (Cacher.Wait) before an informer is run is quicker.
//   - The cache stops: all watches end, and everything after that is 429. End informers
//     before the cache: one that pauses between two tries ends only after the pause.
//   - The cache has an idle timeout: a list or a watch starts it again, and an
//     open watch, and therefore a running informer, keeps it running.
package informer
