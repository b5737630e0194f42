// SPDX-License-Identifier: Apache-2.0

package arrows

// The rules of the tree, as data. The table of packages is the one of the
// design and of ARCHITECTURE.md.

const module = "github.com/kube-watchcache/watchcache"

// anything stands for every package of ours.
const anything = "..."

// arrow says which packages of ours the non-test files of a package import.
// A path that ends in /... stands for the package and all below it; the first
// row that matches a package is the one that counts.
type arrow struct {
	from string
	to   []string
}

var arrows = []arrow{
	{".", nil},
	{"examples/...", []string{anything}},
	{"integration/...", []string{anything}},
	{"bench/...", []string{anything}},
	{"hack/...", []string{"hack/internal/..."}},
	{"dashboards/...", []string{"dashboards/...", "metrics"}},
	{"internal/shared", nil},
	{"internal/decoration", nil},
	{"internal/minors", nil},
	{"internal/funcvalue", nil},
	{"internal/endpoints", nil},
	{"internal/heapsize", nil},
	{"internal/grpckeys", nil},
	{"internal/mvcc", []string{"internal/minors"}},
	{"internal/rounds", nil},
	{"internal/klogzap", nil},
	{"internal/keptlists", []string{"cacher", "watchcache", "internal/minors"}},
	{"internal/cachetest", []string{"internal/keptlists", "internal/memstore", "internal/poddata", "cacher"}},
	{"internal/...", []string{"internal/..."}},
	{"server/internal/shadow", []string{"metrics"}},
	{"server/...", []string{"server/...", "cacher/...", "storage/etcd3", "metrics/...", "debug/...", "internal/shared", "internal/decoration", "internal/funcvalue", "internal/endpoints", "internal/keptlists", "internal/klogzap"}},
	{"devserver", []string{"server", embedded, "internal/klogzap"}},
	{"debug/...", []string{"debug/...", "cacher/...", "metrics/..."}},
	{"informer/...", []string{"informer/...", "cacher/..."}},
	{"k8s37", nil},
	{"conformance/...", []string{"conformance/...", "cacher/...", "storage/capability", "internal/..."}},
	{"simulation/...", []string{"simulation/...", "cacher/...", "watchcache/...", "internal/..."}},
	{"cacher/internal/tasks", nil},
	{"cacher/internal/timeline", nil},
	{"cacher/internal/source", []string{"cacher/internal/tasks", "internal/grpckeys", "metrics", "internal/minors"}},
	{"cacher/internal/freshness", []string{"cacher/internal/tasks", "metrics"}},
	{"cacher/internal/match", []string{"watchcache"}},
	{"cacher/internal/dispatch", []string{"cacher/internal/match", "cacher/internal/tasks", "cacher/internal/timeline", "cacher/status", "internal/rounds", "watchcache", "metrics"}},
	{"cacher/...", []string{"cacher/...", "watchcache/...", "metrics/...", "storage/capability", "internal/shared", "internal/decoration", "internal/minors", "internal/funcvalue", "internal/heapsize"}},
	{"watchcache/...", []string{"watchcache/..."}},
	{"metrics/...", []string{"metrics/..."}},
	{"storage/etcd3/embedded", nil},
	{"storage/capability", nil},
	{"storage/memory", []string{"internal/decoration", "internal/mvcc"}},
	{"storage/upstream", []string{"storage/capability", "internal/grpckeys", "internal/minors"}},
	{"cmd/relay", []string{"server", "cacher", "storage/upstream", "internal/decoration"}},
	{"storage/etcd3", []string{"storage/capability", "internal/endpoints", "internal/grpckeys"}},
}

// pure is the packages without goroutine, clock, logger, metric and context.
var pure = []string{"watchcache/...", "cacher/internal/match"}

// flagless is the packages that import no library of flags. What they import may.
var flagless = []string{"cacher/..."}

// impureImports is what the pure packages don't import, by path or, with
// /..., by folder.
var impureImports = []string{
	"context", "log/...", "os/...", "net/...", "testing/...", "expvar",
	"k8s.io/klog/...", "github.com/go-logr/...", "go.uber.org/zap/...",
	"github.com/prometheus/...", "k8s.io/component-base/...", "go.opentelemetry.io/...",
	"k8s.io/utils/clock/...", "k8s.io/utils/trace/...", "k8s.io/apimachinery/pkg/util/wait",
}

// core is the packages that know nothing of requests over HTTP and of how answers are encoded.
var core = []string{"cacher/..."}

// edgeImports is what the core doesn't import. Package request, which carries the user of a
// request and its kind, is not among them.
var edgeImports = []string{
	"net/http/...", "mime/...", "compress/...",
	"k8s.io/apiserver/pkg/endpoints/handlers/...", "k8s.io/apiserver/pkg/endpoints/responsewriter",
	"k8s.io/apiserver/pkg/server/...",
}

// clockCalls is what the pure packages don't use of package time; the types
// and constants of it are values like others.
var clockCalls = []string{"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"}

// restricted is packages that only tests, and some packages, import.
var restricted = []struct {
	packages string
	users    []string
	reason   string
}{
	{embedded, []string{"devserver", "examples/...", "integration/...", "bench/..."}, "it is for tests, examples and integration"},
	{"devserver", []string{"examples/...", "integration/...", "bench/..."}, "it is for development"},
	{"internal/memstore/...", []string{"internal/...", "integration/...", "bench/...", "simulation/...", "conformance/..."}, "it is for tests"},
	{"internal/poddata/...", []string{"internal/...", "integration/...", "bench/...", "simulation/...", "conformance/..."}, "it is for tests"},
	{"internal/script/...", []string{"internal/...", "integration/..."}, "it is for tests"},
	{"internal/setclock", []string{"internal/...", "simulation/..."}, "it is for tests"},
	{"internal/realistic", []string{"internal/...", "integration/...", "bench/..."}, "it is for tests and measurements"},
	{"internal/fakekube", []string{"integration/..."}, "it is for tests"},
	{"internal/cachetest/...", []string{"internal/...", "integration/..."}, "it is for tests"},
	{"internal/keptlists", []string{"internal/...", "server/...", "simulation/...", "bench/..."}, "the core does not know how lists are encoded"},
}

const embedded = "storage/etcd3/embedded"

// emptyNames is the package names that say nothing.
var emptyNames = []string{"util", "utils", "helper", "helpers", "common"}

// closure is packages and what must not be among all that they link.
type closure struct {
	of     []string
	never  []string
	reason string
}

var closures = []closure{
	{
		of: []string{"cacher/..."},
		never: []string{
			"k8s.io/apiserver/pkg/registry/generic/registry",
			"k8s.io/apiserver/pkg/server",
		},
		reason: "a server's own registry must be able to import the cacher",
	},
	{
		of:     []string{"cacher/..."},
		never:  []string{"k8s.io/apiserver/pkg/storage/cacher", module + "/server/..."},
		reason: "roll-out is for package server",
	},
	{
		of:     []string{"server/...", "cacher/...", "storage/etcd3", "metrics/...", "debug/...", "informer/..."},
		never:  []string{"go.etcd.io/etcd/server/v3/...", module + "/" + embedded, module + "/devserver"},
		reason: "the etcd server is for development and tests",
	},
	{
		of:     []string{"server/...", "cacher/...", "watchcache/...", "storage/...", "metrics/...", "debug/...", "informer/..."},
		never:  []string{module + "/internal/memstore/...", module + "/internal/poddata/...", module + "/internal/script/...", module + "/internal/realistic", module + "/internal/fakekube", module + "/internal/cachetest/..."},
		reason: "these are for tests",
	},
	{
		of:     []string{"server/...", "cacher/...", "watchcache/...", "storage/...", "metrics/...", "debug/...", "informer/..."},
		never:  []string{"testing", "k8s.io/apiserver/pkg/storage/testing", "github.com/stretchr/testify/...", "k8s.io/utils/clock/testing"},
		reason: "test support is not linked into a server",
	},
	{
		of:     []string{"server/...", "cacher/...", "watchcache/...", "storage/etcd3", "metrics/...", "debug/...", "informer/...", "devserver"},
		never:  []string{module + "/storage/memory", module + "/internal/mvcc"},
		reason: "a server that has a database does not link a storage without one",
	},
	{
		of:     []string{"server/...", "cacher/...", "watchcache/...", "storage/etcd3", "metrics/...", "debug/...", "informer/...", "devserver"},
		never:  []string{module + "/storage/upstream", module + "/cmd/relay"},
		reason: "a server that has a database does not link a storage over another server",
	},
}
