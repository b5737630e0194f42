// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/component-base/featuregate"

	"github.com/kube-watchcache/watchcache/cacher"
)

// suite is one run of an exported suite of k8s.io/apiserver/pkg/storage/testing.
type suite struct {
	// function is the suite's name there.
	function string
	// variant tells runs of one function apart.
	variant string
	needs   setup
	run     func(t *testing.T, f *fixture)
}

// plain is a suite that takes nothing but a cacher.
func plain(function string, run func(context.Context, *testing.T, storage.Interface)) suite {
	return suite{function: function, run: func(t *testing.T, f *fixture) { run(f.ctx, t, f.cacher) }}
}

func (s suite) with(needs setup) suite {
	s.needs = needs
	return s
}

// unsafeDeletion is the gate of all that deletes objects that can't be read.
func unsafeDeletion(on bool) map[featuregate.Feature]bool {
	return map[featuregate.Feature]bool{features.AllowUnsafeMalformedObjectDeletion: on}
}

// configured is a setup with a changed configuration of the cacher.
func configured(changes ...func(*cacher.Config)) setup { return setup{configure: changes} }

// fromStorage makes consistent reads go to storage: the cache can't know that
// it is fresh.
func fromStorage(cfg *cacher.Config) {
	cfg.WatchProgress = func() bool { return false }
	cfg.ConsistentGetFromStorage = true
}

func frequentBookmarks(cfg *cacher.Config) { cfg.BookmarkInterval = time.Second }

// tinyWindow keeps one event.
func tinyWindow(cfg *cacher.Config) { cfg.WindowBytes = 1 }

// keysOfSecondNamespace takes objects without a namespace for those of the
// namespace "second".
func keysOfSecondNamespace(cfg *cacher.Config) {
	keyOf := cfg.KeyFunc
	cfg.KeyFunc = func(obj runtime.Object) (string, error) {
		if pod := obj.(*example.Pod); pod.Namespace == "" {
			pod = pod.DeepCopy()
			pod.Namespace = "second"
			obj = pod
		}
		return keyOf(obj)
	}
}

func withoutSizes(cfg *cacher.Config) { cfg.DisableSizeEstimation = true }

var writeSuites = []suite{
	{function: "RunTestCreate", run: func(t *testing.T, f *fixture) {
		storagetesting.RunTestCreate(f.ctx, t, f.cacher, f.check)
	}},
	plain("RunTestCreateWithTTL", storagetesting.RunTestCreateWithTTL),
	plain("RunTestCreateWithKeyExist", storagetesting.RunTestCreateWithKeyExist),
	plain("RunTestUnconditionalDelete", storagetesting.RunTestUnconditionalDelete),
	plain("RunTestConditionalDelete", storagetesting.RunTestConditionalDelete),
	plain("RunTestDeleteWithSuggestion", storagetesting.RunTestDeleteWithSuggestion),
	plain("RunTestDeleteWithSuggestionAndConflict", storagetesting.RunTestDeleteWithSuggestionAndConflict),
	plain("RunTestDeleteWithConflict", storagetesting.RunTestDeleteWithConflict),
	plain("RunTestDeleteWithSuggestionOfDeletedObject", storagetesting.RunTestDeleteWithSuggestionOfDeletedObject),
	plain("RunTestValidateDeletionWithSuggestion", storagetesting.RunTestValidateDeletionWithSuggestion),
	plain("RunTestValidateDeletionWithOnlySuggestionValid", storagetesting.RunTestValidateDeletionWithOnlySuggestionValid),
	plain("RunTestPreconditionalDeleteWithSuggestion", storagetesting.RunTestPreconditionalDeleteWithSuggestion),
	plain("RunTestPreconditionalDeleteWithOnlySuggestionPass", storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass),
	{
		function: "RunTestDeleteWithConflictAndMissingExpectedTransformOrDecodeError", variant: "transformer",
		needs: setup{gates: unsafeDeletion(true), failing: transformerFails},
		run:   deleteWithConflictOfUnreadable,
	},
	{
		function: "RunTestDeleteWithConflictAndMissingExpectedTransformOrDecodeError", variant: "codec",
		needs: setup{gates: unsafeDeletion(true), failing: codecFails},
		run:   deleteWithConflictOfUnreadable,
	},
	{
		function: "RunTestDeleteExpectedTransformOrDecodeError", variant: "transformer",
		needs: setup{gates: unsafeDeletion(true), failing: transformerFails},
		run:   deleteOfUnreadable,
	},
	{
		function: "RunTestDeleteExpectedTransformOrDecodeError", variant: "codec",
		needs: setup{gates: unsafeDeletion(true), failing: codecFails},
		run:   deleteOfUnreadable,
	},
	{
		function: "RunTestDeleteWithSuggestionAndMissingExpectedTransformOrDecodeError",
		needs:    setup{gates: unsafeDeletion(true)},
		run: func(t *testing.T, f *fixture) {
			storagetesting.RunTestDeleteWithSuggestionAndMissingExpectedTransformOrDecodeError(f.ctx, t, f.cacher)
		},
	},
	{function: "RunTestGuaranteedUpdate", needs: setup{watched: watchedApart}, run: func(t *testing.T, f *fixture) {
		storagetesting.RunTestGuaranteedUpdate(f.ctx, t, f.exchangeable(), f.check)
	}},
	plain("RunTestGuaranteedUpdateWithTTL", storagetesting.RunTestGuaranteedUpdateWithTTL),
	{function: "RunTestGuaranteedUpdateChecksStoredData", needs: setup{watched: watchedApart}, run: func(t *testing.T, f *fixture) {
		storagetesting.RunTestGuaranteedUpdateChecksStoredData(f.ctx, t, f.exchangeable())
	}},
	plain("RunTestGuaranteedUpdateWithConflict", storagetesting.RunTestGuaranteedUpdateWithConflict),
	plain("RunTestGuaranteedUpdateWithSuggestionAndConflict", storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict),
	{function: "RunTestTransformationFailure", needs: setup{watched: watchedApart}, run: func(t *testing.T, f *fixture) {
		storagetesting.RunTestTransformationFailure(f.ctx, t, f.exchangeable())
	}},
	// Its objects have no names, so that their keys can't be told from them.
	plain("RunTestKeySchema", storagetesting.RunTestKeySchema).with(configured(fromStorage)),
}

func deleteWithConflictOfUnreadable(t *testing.T, f *fixture) {
	storagetesting.RunTestDeleteWithConflictAndMissingExpectedTransformOrDecodeError(f.ctx, t, f.cacher, f.failing.fail.Store)
}

func deleteOfUnreadable(t *testing.T, f *fixture) {
	storagetesting.RunTestDeleteExpectedTransformOrDecodeError(f.ctx, t, f.cacher, f.failing.fail.Store)
}

var readSuites = []suite{
	{function: "RunTestGet", run: runTestGet},
	{
		// The suite looks at the keys that etcd is asked for.
		function: "RunTestList", needs: setup{keys: "/registry"},
		run: func(t *testing.T, f *fixture) {
			storagetesting.RunTestList(f.ctx, t, f.cacher, f.compact, true, f.recorder)
		},
	},
	{function: "RunTestConsistentList", run: func(t *testing.T, f *fixture) {
		storagetesting.RunTestConsistentList(f.ctx, t, f.cacher, f.increase, true, true, true)
	}},
	{function: "RunTestGetListNonRecursive", run: func(t *testing.T, f *fixture) {
		storagetesting.RunTestGetListNonRecursive(f.ctx, t, f.increase, f.cacher)
	}},
	plain("RunTestGetListRecursivePrefix", storagetesting.RunTestGetListRecursivePrefix),
	{
		// The cache has the objects from before they became unreadable; what
		// is judged is what a read from storage says of them.
		function: "RunTestGetListWithErrorAggregation",
		needs: setup{
			gates: unsafeDeletion(true), keys: "/", corruptible: true, watched: watchedApart,
			configure: []func(*cacher.Config){fromStorage},
		},
		run: func(t *testing.T, f *fixture) {
			storagetesting.RunTestGetListWithErrorAggregation(f.ctx, t, f.exchangeable(), corruptError(f.ctx))
		},
	},
	{
		function: "RunTestGetListWithoutErrorAggregation",
		needs: setup{
			gates: unsafeDeletion(false), keys: "/", watched: watchedApart,
			configure: []func(*cacher.Config){fromStorage},
		},
		run: func(t *testing.T, f *fixture) {
			storagetesting.RunTestGetListWithoutErrorAggregation(f.ctx, t, f.exchangeable(), corruptError(f.ctx))
		},
	},
	{function: "RunTestListContinuation", run: func(t *testing.T, f *fixture) {
		storagetesting.RunTestListContinuation(f.ctx, t, f.cacher, nil)
	}},
	{function: "RunTestListPaginationRareObject", run: func(t *testing.T, f *fixture) {
		storagetesting.RunTestListPaginationRareObject(f.ctx, t, f.cacher, nil)
	}},
	{function: "RunTestListContinuationWithFilter", run: func(t *testing.T, f *fixture) {
		storagetesting.RunTestListContinuationWithFilter(f.ctx, t, f.cacher, nil)
	}},
	// The suite stores an object without its namespace under a key with one: a
	// cache knows keys from objects only. It wants pages at resourceVersion "0".
	{function: "RunTestListInconsistentContinuation", needs: configured(keysOfSecondNamespace), run: func(t *testing.T, f *fixture) {
		storagetesting.RunTestListInconsistentContinuation(f.ctx, t, paging{settling{f.cacher}}, f.compact)
	}},
	{
		// Each read of storage makes another object, for as long as it runs.
		function: "RunTestListResourceVersionMatch",
		run: func(t *testing.T, f *fixture) {
			storagetesting.RunTestListResourceVersionMatch(f.ctx, t, f.exchangeable())
		},
	},
	plain("RunTestListPaging", storagetesting.RunTestListPaging),
	plain("RunTestNamespaceScopedList", storagetesting.RunTestNamespaceScopedList).with(configured(indexed)),
	{function: "RunTestCompactRevision", run: func(t *testing.T, f *fixture) {
		storagetesting.RunTestCompactRevision(f.ctx, t, f.cacher, f.increase, f.compact)
	}},
	{function: "RunTestStats", variant: "sizes", run: func(t *testing.T, f *fixture) {
		storagetesting.RunTestStats(f.ctx, t, f.cacher, f.codec, f.stored, true)
	}},
	{function: "RunTestStats", variant: "no sizes", needs: configured(withoutSizes), run: func(t *testing.T, f *fixture) {
		storagetesting.RunTestStats(f.ctx, t, f.cacher, f.codec, f.stored, false)
	}},
}

var watchSuites = []suite{
	plain("RunTestWatch", storagetesting.RunTestWatch),
	// The cache goes on to serve watches from what storage has compacted, as
	// long as its window reaches: the suite's "too old" is that of the window.
	{function: "RunTestWatchFromZero", needs: configured(tinyWindow), run: func(t *testing.T, f *fixture) {
		storagetesting.RunTestWatchFromZero(f.ctx, t, f.cacher, f.compactAndFlush)
	}},
	plain("RunTestDeleteTriggerWatch", storagetesting.RunTestDeleteTriggerWatch),
	plain("RunTestWatchFromNonZero", storagetesting.RunTestWatchFromNonZero),
	plain("RunTestDelayedWatchDelivery", storagetesting.RunTestDelayedWatchDelivery),
	{function: "RunTestWatchError", needs: setup{watched: watchedHeld}, run: func(t *testing.T, f *fixture) {
		storagetesting.RunTestWatchError(f.ctx, t, f.exchangeable())
	}},
	{
		function: "RunTestWatchWithUnsafeDelete",
		needs:    setup{gates: unsafeDeletion(true), corruptible: true},
		run: func(t *testing.T, f *fixture) {
			// A cacher that knows an object deletes it without reading it from storage,
			// readable or not. The suite tests what its watchers get when another server
			// deletes an unreadable object.
			store := f.exchangeable()
			store.Interface = deletedElsewhere{settling{f.cacher}, f.storage}
			storagetesting.RunTestWatchWithUnsafeDelete(f.ctx, t, store, corruptError(f.ctx))
		},
	},
	plain("RunTestWatchContextCancel", storagetesting.RunTestWatchContextCancel),
	plain("RunTestWatcherTimeout", storagetesting.RunTestWatcherTimeout),
	{function: "RunTestWatchDeleteEventObjectHaveLatestRV", run: runTestWatchDeleteEventObjectHaveLatestRV},
	plain("RunTestWatchInitializationSignal", storagetesting.RunTestWatchInitializationSignal),
	{function: "RunOptionalTestProgressNotify", needs: configured(frequentBookmarks), run: func(t *testing.T, f *fixture) {
		storagetesting.RunOptionalTestProgressNotify(f.ctx, t, f.cacher, f.increase)
	}},
	plain("RunTestClusterScopedWatch", storagetesting.RunTestClusterScopedWatch).with(configured(clusterScoped, indexed)),
	plain("RunTestNamespaceScopedWatch", storagetesting.RunTestNamespaceScopedWatch).with(configured(indexed)),
	{function: "RunTestWatchDispatchBookmarkEvents", run: func(t *testing.T, f *fixture) {
		storagetesting.RunTestWatchDispatchBookmarkEvents(f.ctx, t, f.cacher, true)
	}},
	{function: "RunTestOptionalWatchBookmarksWithCorrectResourceVersion", run: func(t *testing.T, f *fixture) {
		storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion(f.ctx, t, unhurried{f.cacher, f})
	}},
	plain("RunSendInitialEventsBackwardCompatibility", storagetesting.RunSendInitialEventsBackwardCompatibility),
	// The suite begins at resourceVersion 1.
	{function: "RunWatchSemantics", needs: setup{server: true}, run: func(t *testing.T, f *fixture) {
		storagetesting.RunWatchSemantics(f.ctx, t, settling{f.cacher})
	}},
	{function: "RunWatchSemanticInitialEventsExtended", run: func(t *testing.T, f *fixture) {
		storagetesting.RunWatchSemanticInitialEventsExtended(f.ctx, t, settling{f.cacher})
	}},
	{function: "RunWatchListMatchSingle", run: func(t *testing.T, f *fixture) {
		storagetesting.RunWatchListMatchSingle(f.ctx, t, settling{f.cacher})
	}},
	{function: "RunWatchErrorIsBlockingFurtherEvents", needs: setup{watched: watchedHeld}, run: func(t *testing.T, f *fixture) {
		storagetesting.RunWatchErrorIsBlockingFurtherEvents(f.ctx, t, f.exchangeable())
	}},
}
