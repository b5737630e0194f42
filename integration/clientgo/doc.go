// SPDX-License-Identifier: Apache-2.0

// Package clientgo tests that client-go's tools/cache gets from a server on our
// cache what it relies on: complete lists, every change once and in order, the
// deletion's resourceVersion, bookmarks, 410 when a position is lost. Behaviour
// of client-go alone (queues that deduplicate, stores that expire, handlers
// that are removed) is tested by client-go, and not here.
//
// The server is reached by package informer, in its own process, and over HTTPS. The
// tests disturb both: connections are cut, the cache's window is flushed, the server
// and its etcd are restarted. client-go's mutation detector is on in all of them.
//
// Where each clause is tested:
//
//	Reflector                                            TestReflector
//	  list, then watch; watch-list (KEP-3157)              /lists once
//	  a dropped connection is resumed without relist       /resumes without relist
//	  410 leads to a relist                                /relists after 410
//	  bookmarks move LastSyncResourceVersion               /follows bookmarks when idle
//	Informers, typed and dynamic, under a running writer TestFaults
//	  eventually what etcd has, byte for byte; one call at a time; an ordered
//	  subsequence of the states
package clientgo
