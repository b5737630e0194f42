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
//	  list, then watch                                     /lists and then watches
//	  watch-list (KEP-3157)                                /streams the list
//	  WatchListPageSize                                    /pages the first list
//	  a dropped connection is resumed without relist       /resumes without relist
//	  410 leads to a relist                                /relists after 410
//	  bookmarks move LastSyncResourceVersion               /follows bookmarks when idle
//	  a watch that ends with an internal error is resumed  /retries internal errors for MaxInternalErrorRetryDuration
//	SharedInformer, SharedIndexInformer                  TestSharedInformer
//	  eventually what etcd has, byte for byte              /equals etcd in the end, /equals etcd in all namespaces
//	  selectors: entering and leaving                      /keeps to its selector
//	  states are an ordered subsequence                    /shows an ordered subsequence of the states
//	  SetTransform may write to what it gets               /transforms before anybody sees it
//	  WaitForCacheSync                                     /WaitForCacheSync
//	ResourceEventHandler                                 TestEventHandlers
//	  one call at a time, every change, in order           /are told every change in order
//	  HasSynced of each registration, the initial list     /have a HasSynced each
//	Deletions                                            TestDeletions
//	  last state, the deletion's resourceVersion           /carry the last state with the deletion's resourceVersion, /are told after a resume ...
//	  DeletedFinalStateUnknown                             /missed over a relist are DeletedFinalStateUnknown
//	  deleted and created again                            /and recreation between two looks are an update with another UID, /and recreation before its eyes ...
//	SharedInformerFactory (generated)                    TestSharedInformerFactory
//	dynamicinformer, dynamiclister                       TestDynamicSharedInformerFactory
//	Faults under a running writer                        TestFaults
//	mutation detector                                    TestMutationDetector
//
// Queues, stores, listers and MutationCache are fed by these alone, and client-go tests
// them.
//
// A test gets what it needs from a fixture: see newFixture, sharedFixture and
// bothTransports.
package clientgo
