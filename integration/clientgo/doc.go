// SPDX-License-Identifier: Apache-2.0

// Package clientgo holds, as tests, what client-go's tools/cache documents of
// itself: reflectors, shared informers and their factories, queues, stores,
// listers. They are fed from a server with our watch cache, in the server's own
// process and over HTTPS, and disturbed meanwhile: connections are cut, the
// cache's window is flushed, the server and its etcd are restarted. client-go's
// mutation detector is on in all of them.
//
// Where each clause is held:
//
//	Reflector                                            TestReflector
//	  list, then watch                                     /lists and then watches
//	  watch-list (KEP-3157)                                /streams the list
//	  WatchListPageSize                                    /pages the first list
//	  a dropped connection is resumed without relist       /resumes without relist
//	  410 leads to a relist                                /relists after 410
//	  bookmarks move LastSyncResourceVersion               /follows bookmarks when idle
//	  MaxInternalErrorRetryDuration                        /retries internal errors for ..., /relists after an internal error without ...
//	SharedInformer, SharedIndexInformer                  TestSharedInformer
//	  eventually what etcd has, byte for byte              /equals etcd in the end, /equals etcd in all namespaces
//	  selectors: entering and leaving                      /keeps to its selector
//	  indexers, also late ones                             /indexes what it has
//	  states are an ordered subsequence                    /shows an ordered subsequence of the states
//	  SetTransform                                         /transforms before anybody sees it
//	  WaitForCacheSync, WaitFor                            /WaitForCacheSync
//	  a stopped informer stays stopped                     /stops for good and another one takes over
//	  SetWatchErrorHandler                                 /tells the WatchErrorHandler and recovers
//	ResourceEventHandler                                 TestEventHandlers
//	  one call at a time, every change, in order           /are told every change in order
//	  a slow handler holds nobody up                       /do not wait for each other
//	  a late handler gets what exists first                /added late get the existing objects first
//	  HasSynced of each registration                       /have a HasSynced each
//	  resync for those who asked, at their period          /resync if they asked to at their period
//	  RemoveEventHandler, ShutDownEventHandler             /can be removed
//	Deletions                                            TestDeletions
//	  last state, the deletion's resourceVersion           /carry the last state with the deletion's resourceVersion, /are told after a resume ...
//	  DeletedFinalStateUnknown                             /missed over a relist are DeletedFinalStateUnknown
//	  deleted and created again                            /and recreation between two looks are an update with another UID, /and recreation before its eyes ...
//	SharedInformerFactory (generated)                    TestSharedInformerFactory
//	dynamicinformer                                      TestDynamicSharedInformerFactory
//	Faults under a running writer                        TestFaults
//	DeltaFIFO, RealFIFO, FIFO, Controller                queue*_test.go
//	Store, Indexer, ThreadSafeStore, UndeltaStore,
//	ExpirationCache                                      store*_test.go
//	listers, typed and generic                           lister*_test.go
//	MutationCache                                        mutation*_test.go
//
// A test gets what it needs from a world: see newWorld, theWorld and bothWays.
package clientgo
