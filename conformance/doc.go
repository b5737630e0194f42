// SPDX-License-Identifier: Apache-2.0

// Package conformance is the storage and watch contract as a suite: what a
// watch cache needs of the storage below it, and what clients then get, for
// the author of any storage.Interface to run on it.
//
// # Running it
//
// A test of the backend's own calls Run with a function that opens it, empty:
//
//	func TestBackend(t *testing.T) {
//		conformance.Run(t, func(t *testing.T) conformance.Backend {
//			store, err := mybackend.New(t.TempDir(), conformance.Prefix, conformance.Codec(),
//				conformance.NewPod, conformance.NewPodList)
//			if err != nil {
//				t.Fatal(err)
//			}
//			t.Cleanup(store.Close)
//			return conformance.Backend{Storage: store}
//		})
//	}
//
// The stored objects are Pods of k8s.io/apiserver's example API; NewPod,
// NewPodList, Codec, Resource, Key and Attrs describe them for a backend or a
// cacher, and ForPods is a storagebackend.ConfigForResource for backends that
// are opened as generic.NewRawStorage is. The example of this package is
// complete.
//
// Storage is all that is required. Backend's other fields say what more the
// backend can do: answer progress requests, compact its history, move its
// resourceVersion on without a Pod. Clauses about a missing ability are skipped
// with the reason, and counted in the line that Run prints at its end.
//
// Backend.Key is for a storage with keys of another form than "/pods/NAMESPACE/NAME",
// Backend.Writer for one that only reads: another way to write to its data, an API client
// for example. All clauses but those about writes are then judged.
//
// Backends may be on one server, as long as each sees its own objects only:
// give each a key prefix, a table or a file of its own. The server's history
// must be there from its beginning until Backend.Compact is called.
//
// Those clauses whose names begin with Concurrent run races, some hundred times:
// a backend that loses one of them now and then breaks the rule.
//
// # Clauses
//
// Each clause is a subtest, GROUP/CLAUSE, opens a backend of its own, and ends
// in a bounded time: -run TestBackend/Storage/EventOnce judges one. When it
// fails it says what was expected, what came, and which rule that breaks. A clause
// that a backend holds up for ever fails with the stacks of all goroutines, after
// Backend.ClauseTimeout, and the others are judged. The time limit of go test
// (-timeout, 10 minutes) must leave room for that.
//
// The groups Storage and Cacher hold these clauses, on the storage itself and
// with a cacher over it:
//
//	EventOnce             no change is lost, and none is told twice
//	EventOrder            what a client sees last is what is there last
//	EventTypes            a client's cache knows what is new and what is gone
//	EventContent          a cache has what was written, and when
//	DeletedEvent          a client knows what was deleted, and can resume after it
//	WatchFromEachVersion  a broken watch is resumed without a gap or a repetition
//	InitialEvents         a client can fill its cache from a watch, and knows when it is full
//	LabelTransitions      an object that leaves a selection leaves the client's cache
//	FieldTransitions      the same for what is selected by fields
//	Scopes                no one is told of another namespace
//	ExactList             a list at a version is that version
//	ExactPages            a list in pages is one list, though others write
//	ReadYourWrites        who has written reads it
//	CurrentVersion        a cache can know that it is fresh
//	ConcurrentUpdates     no update undoes another
//	ConcurrentCreates     a name is taken once
//	ConcurrentEvents      all of the events' rules hold while many write
//	ConcurrentVersions    a cache is not taken for fresh when it is not
//	ConcurrentLists       a list, and a watch from where it is, have no gap between them
//
// The group Storage, further:
//
//	Progress                reads of a quiet namespace are served from memory
//	ProgressOfIdleResource  the same for a quiet resource
//	ProgressOrder           a cache that believes in its progress is not stale
//	ConcurrentProgress      the same while many write
//	InitializationSignal    flow control gives a watch's seat to others
//
// The group Cacher, further:
//
//	FilledStorage       a server that restarts serves what was there
//	ConsistentReads     servers beside each other serve each other's writes
//	StaleCache          writes are right though the cache is late
//	BrokenWatches       a storage that comes and goes is not noticed by watchers
//	TooOld              who was away for long is told to list, and never misses anything
//	IdleBookmarks       clients of a quiet resource can resume after long
//	BookmarkOrder       a bookmark can be resumed from
//	ResumeFromBookmark  and whoever does is told everything
//	Parking             one slow client costs the others nothing, and itself nothing
//	ParkedTooLong       a client that is too slow is told so
//
// The group Compaction comes last, one clause after the other, because a
// compaction may take the history of everything on the server:
//
//	StorageWatch            a watch that begins too early is told so: never a gap
//	StorageWatchAtDeletion  the same where the compaction ends with a deletion
//	StorageList             a list at a version that is gone is refused, not made up
//	StorageContinue         a list in pages that takes too long can be gone on with
//	CacherList              the same through a cacher,
//	CacherContinue          which has let go of its own history, too
//	CacherAway              a cacher that could not follow lists again
//
// Beside them each group runs those suites that k8s.io/apiserver exports for
// its own storages, in k8s.io/apiserver/pkg/storage/testing, and that need no
// hand in a storage's insides; they have their names there: RunTestGet and so
// on.
//
// # Deviations
//
// Declare the clauses that a backend is known to break; do not leave them out:
//
//	Deviations: map[string]string{
//		"Storage/RunTestCreateWithTTL": "objects are kept for ever",
//	},
//
// Such a clause runs in a process of its own, the same test binary with -run,
// where it must fail, a race in one of a few runs; what it says there is logged,
// and Run prints the list. An entry whose clause holds is an error: it is to be
// removed.
package conformance
