// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/kube-watchcache/watchcache/cacher"
)

// suite is one of the suites that k8s.io/apiserver/pkg/storage/testing exports,
// under its name there. Those are run that need a storage.Interface and no
// hand in its transformer, its codec or its client.
type suite struct {
	name  string
	needs needs
	// cachedNeeds is what a cacher needs of the backend beyond that.
	cachedNeeds needs
	alone       bool
	run         func(ctx context.Context, t *testing.T, f *fixture, s storage.Interface)
	// configure is what the cacher must be like. nil: the suite is not for
	// cachers.
	configure []func(*cacher.Config)
	// raw, cached: with what the suite is run.
	raw, cached bool
}

// plain makes a suite of a function that takes nothing but a store.
func plain(name string, run func(context.Context, *testing.T, storage.Interface), configure ...func(*cacher.Config)) suite {
	return suite{name: name, raw: true, cached: true, configure: configure,
		run: func(ctx context.Context, t *testing.T, _ *fixture, s storage.Interface) { run(ctx, t, s) }}
}

func alone(s suite) suite { s.alone = true; return s }

const suiteRule = "the suite of this name in k8s.io/apiserver/pkg/storage/testing passes"

func storageSuites() (out []clause) {
	for _, s := range suites() {
		if s.raw {
			out = append(out, clause{name: s.name, rule: suiteRule, needs: s.needs, alone: s.alone, run: func(t *testing.T, f *fixture) {
				s.run(f.ctx, t, f, f.raw)
			}})
		}
	}
	return out
}

func cacherSuites() (out []clause) {
	for _, s := range suites() {
		if s.cached {
			out = append(out, clause{name: s.name, rule: suiteRule, needs: s.needs | s.cachedNeeds, alone: s.alone, run: func(t *testing.T, f *fixture) {
				s.run(f.ctx, t, f, settling{f.cache(t, append([]func(*cacher.Config){asShipped}, s.configure...)...)})
			}})
		}
	}
	return out
}

func suites() []suite {
	reads, ofWrites := readSuites(), writeSuites()
	for i := range ofWrites {
		ofWrites[i].needs |= writes
	}
	for i := range reads {
		// They expect a list to be at the resourceVersion of their last write,
		// and one reads an object that lasts for a second.
		reads[i].alone = reads[i].name != "RunTestListPaginationRareObject"
	}
	return slices.Concat(ofWrites, reads, watchSuites())
}

func writeSuites() []suite {
	return []suite{
		{
			name: "RunTestCreate", raw: true, cached: true,
			run: func(ctx context.Context, t *testing.T, f *fixture, s storage.Interface) {
				storagetesting.RunTestCreate(ctx, t, s, f.stored)
			},
		},
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
		plain("RunTestGuaranteedUpdateWithTTL", storagetesting.RunTestGuaranteedUpdateWithTTL),
		plain("RunTestGuaranteedUpdateWithConflict", storagetesting.RunTestGuaranteedUpdateWithConflict),
		plain("RunTestGuaranteedUpdateWithSuggestionAndConflict", storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict),
		// Its objects have no names, so that a cache can't tell their keys.
		plain("RunTestKeySchema", storagetesting.RunTestKeySchema, fromStorage),
	}
}

func readSuites() []suite {
	return []suite{
		{name: "RunTestGet", raw: true, cached: true, configure: []func(*cacher.Config){impatient}, run: runTestGet},
		{
			name: "RunTestConsistentList", raw: true, cached: true, needs: touch,
			run: func(ctx context.Context, t *testing.T, f *fixture, s storage.Interface) {
				_, cached := s.(settling)
				storagetesting.RunTestConsistentList(ctx, t, unsettled(s), f.increase, cached, f.backend.progress(), cached)
			},
		},
		{
			name: "RunTestGetListNonRecursive", raw: true, cached: true, needs: touch,
			configure: []func(*cacher.Config){impatient},
			run: func(ctx context.Context, t *testing.T, f *fixture, s storage.Interface) {
				storagetesting.RunTestGetListNonRecursive(ctx, t, f.increase, s)
			},
		},
		plain("RunTestGetListRecursivePrefix", storagetesting.RunTestGetListRecursivePrefix),
		{
			name: "RunTestListContinuation", raw: true, cached: true,
			run: func(ctx context.Context, t *testing.T, _ *fixture, s storage.Interface) {
				storagetesting.RunTestListContinuation(ctx, t, s, nil)
			},
		},
		{
			name: "RunTestListPaginationRareObject", raw: true, cached: true,
			run: func(ctx context.Context, t *testing.T, _ *fixture, s storage.Interface) {
				storagetesting.RunTestListPaginationRareObject(ctx, t, s, nil)
			},
		},
		{
			name: "RunTestListContinuationWithFilter", raw: true, cached: true,
			run: func(ctx context.Context, t *testing.T, _ *fixture, s storage.Interface) {
				storagetesting.RunTestListContinuationWithFilter(ctx, t, s, nil)
			},
		},
		plain("RunTestListPaging", storagetesting.RunTestListPaging),
		plain("RunTestNamespaceScopedList", storagetesting.RunTestNamespaceScopedList),
		{
			name: "RunTestStats", raw: true, cached: true,
			configure: []func(*cacher.Config){func(config *cacher.Config) { config.DisableSizeEstimation = true }},
			run: func(ctx context.Context, t *testing.T, _ *fixture, s storage.Interface) {
				storagetesting.RunTestStats(ctx, t, s, Codec(), identity.NewEncryptCheckTransformer(), false)
			},
		},
	}
}

// asShipped undoes what clauses of ours have otherwise: some suites wait for
// what never comes.
func asShipped(config *cacher.Config) { config.FreshnessTimeout, config.MaxFallbackLists = 0, 0 }

// impatient is for suites that ask for what is not there yet.
func impatient(config *cacher.Config) { config.FreshnessTimeout = time.Second }

// clusterScoped makes a resource without namespaces of Pods.
func clusterScoped(config *cacher.Config) {
	config.KeyFunc = func(object runtime.Object) (string, error) { return storage.NoNamespaceKeyFunc(Prefix, object) }
}

// fromStorage makes consistent reads go to storage.
func fromStorage(config *cacher.Config) {
	config.WatchProgress = func() bool { return false }
	config.ConsistentGetFromStorage = true
}

func watchSuites() []suite {
	cachedOnly := func(s suite) suite { s.raw = false; return s }
	rawOnly := func(s suite) suite { s.cached = false; return s }
	// They set a feature gate. A cacher begins at the most recent version only
	// if it can know that it is there.
	initial := func(s suite) suite {
		s.needs, s.cachedNeeds = s.needs|initialEvents, progress
		return alone(s)
	}
	return []suite{
		plain("RunTestWatch", storagetesting.RunTestWatch),
		plain("RunTestDeleteTriggerWatch", storagetesting.RunTestDeleteTriggerWatch),
		plain("RunTestWatchFromNonZero", storagetesting.RunTestWatchFromNonZero),
		plain("RunTestDelayedWatchDelivery", storagetesting.RunTestDelayedWatchDelivery),
		plain("RunTestWatchContextCancel", storagetesting.RunTestWatchContextCancel),
		plain("RunTestWatcherTimeout", storagetesting.RunTestWatcherTimeout),
		{name: "RunTestWatchDeleteEventObjectHaveLatestRV", raw: true, cached: true, run: runTestWatchDeleteEventObjectHaveLatestRV},
		plain("RunTestClusterScopedWatch", storagetesting.RunTestClusterScopedWatch, clusterScoped),
		plain("RunTestNamespaceScopedWatch", storagetesting.RunTestNamespaceScopedWatch),
		plain("RunSendInitialEventsBackwardCompatibility", storagetesting.RunSendInitialEventsBackwardCompatibility),
		// The suite begins at resourceVersion 1, which a cache has only if it
		// was there from the beginning.
		rawOnly(initial(plain("RunWatchSemantics", storagetesting.RunWatchSemantics))),
		initial(plain("RunWatchSemanticInitialEventsExtended", storagetesting.RunWatchSemanticInitialEventsExtended)),
		initial(plain("RunWatchListMatchSingle", storagetesting.RunWatchListMatchSingle)),
		cachedOnly(suite{
			name: "RunTestOptionalWatchBookmarksWithCorrectResourceVersion", cached: true,
			run: func(ctx context.Context, t *testing.T, f *fixture, s storage.Interface) {
				storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion(ctx, t, unhurried{unsettled(s), f})
			},
		}),
		cachedOnly(suite{
			name: "RunTestWatchDispatchBookmarkEvents", cached: true,
			run: func(ctx context.Context, t *testing.T, _ *fixture, s storage.Interface) {
				storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, s, true)
			},
		}),
		cachedOnly(suite{
			name: "RunOptionalTestProgressNotify", cached: true, needs: touch,
			configure: []func(*cacher.Config){frequentBookmarks},
			run: func(ctx context.Context, t *testing.T, f *fixture, s storage.Interface) {
				storagetesting.RunOptionalTestProgressNotify(ctx, t, s, f.increase)
			},
		}),
	}
}

// compactionSuites are those that compact. They are run on the storage; with a
// cacher, what it keeps itself decides what is too old.
func compactionSuites() []clause {
	return []clause{
		{name: "RunTestList", rule: suiteRule, needs: touch, run: func(t *testing.T, f *fixture) {
			storagetesting.RunTestList(f.ctx, t, f.raw, f.compactingWithWrite, false, nil)
		}},
		{name: "RunTestListInconsistentContinuation", rule: suiteRule, run: func(t *testing.T, f *fixture) {
			storagetesting.RunTestListInconsistentContinuation(f.ctx, t, f.raw, f.compacting)
		}},
		{name: "RunTestWatchFromZero", rule: suiteRule, run: func(t *testing.T, f *fixture) {
			storagetesting.RunTestWatchFromZero(f.ctx, t, f.raw, f.compacting)
		}},
		{name: "RunTestCompactRevision", rule: suiteRule, needs: touch, run: func(t *testing.T, f *fixture) {
			storagetesting.RunTestCompactRevision(f.ctx, t, f.raw, f.increase, f.noticing)
		}},
	}
}

// stored is a storagetesting.KeyValidation: what was written can be read.
func (f *fixture) stored(_ context.Context, t *testing.T, key string) {
	t.Helper()
	f.get(t, f.raw, key, "")
}

// increase is a storagetesting.IncreaseRVFunc.
func (f *fixture) increase(_ context.Context, t *testing.T) int64 {
	t.Helper()
	return int64(f.touch(t))
}

// compacting is a storagetesting.Compaction.
func (f *fixture) compacting(_ context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	rv, err := versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		t.Fatalf("the suite compacts up to %q: %v", resourceVersion, err)
	}
	f.compact(t, rv)
}

// compactingWithWrite is compacting for a suite that counts on a write with
// which API servers agree on a compaction.
func (f *fixture) compactingWithWrite(ctx context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	before, err := f.raw.GetCurrentResourceVersion(ctx)
	if err != nil {
		t.Fatalf("GetCurrentResourceVersion fails: %v", err)
	}
	f.compacting(ctx, t, resourceVersion)
	if after, err := f.raw.GetCurrentResourceVersion(ctx); err != nil || after == before {
		f.touch(t)
	}
}

// noticing is compacting that waits for CompactRevision to tell of it.
func (f *fixture) noticing(ctx context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	f.compacting(ctx, t, resourceVersion)
	f.eventually(t, "CompactRevision is "+resourceVersion+" after a compaction", func() bool {
		return fmt.Sprint(f.raw.CompactRevision()) == resourceVersion
	})
}

// settling is a cacher with a Create that returns when the cache has what was
// created, for suites that read "any version" and mean the latest.
type settling struct{ cached }

// Create implements storage.Interface.
func (s settling) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if err := s.Interface.Create(ctx, key, obj, out, ttl); err != nil {
		return err
	}
	pod, ok := out.(*example.Pod)
	if !ok {
		return nil
	}
	// Objects that last for a moment only may be gone.
	return s.Get(ctx, key, storage.GetOptions{ResourceVersion: pod.ResourceVersion, IgnoreNotFound: true}, &example.Pod{})
}

// unhurried has Create take as long as it takes, for a suite that gives a
// hundred of them three seconds: its rule is about bookmarks, not about speed.
type unhurried struct {
	storage.Interface
	f *fixture
}

// Create implements storage.Interface.
func (s unhurried) Create(_ context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return s.Interface.Create(s.f.ctx, key, obj, out, ttl)
}

// unsettled returns the cacher as it is.
func unsettled(s storage.Interface) storage.Interface {
	if settled, ok := s.(settling); ok {
		return settled.cached.Interface
	}
	return s
}
