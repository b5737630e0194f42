// SPDX-License-Identifier: Apache-2.0

// Package rolling replaces the servers of an API one after the other, from the shipped cacher
// to this cache and back, gracefully and by kill, while client-go informers follow and
// writers write. Three servers over one etcd are behind one address. Every informer must end
// with etcd's state, and etcd's history judges each of its watches: no event may be missing or
// come twice. Nobody may list again where all servers that clients can move to have this cache.
//
//	make e2e SUITE=rolling RUN=TestUpgradeAndBack ARGS="-args -informers 300"
//	make e2e SUITE=rolling RUN=TestBetweenVersions ARGS="-args -earlier COMMIT"
package rolling
