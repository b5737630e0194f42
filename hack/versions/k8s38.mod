module github.com/kube-watchcache/watchcache

go 1.27.0

require (
	github.com/anishathalye/porcupine v1.3.1 // looks for one order of all operations on a key that explains every answer (integration/chaos); what etcd's own robustness tests take; no dependency of its own
	github.com/google/pprof v0.0.0-20260906184651-6331bc6350fe // into what the CPU time of the servers goes that bench/ measures over HTTPS: reading their profiles; the format's own library, by its authors; only bench/boundary links it
	github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus v1.1.0 // request counts and latencies of the etcd client; what k8s.io/apiserver uses for its own etcd client; comes with k8s.io/apiserver
	github.com/prometheus/client_golang v1.25.0 // the collectors of metrics/; the format and registry of everything in the ecosystem; comes with k8s.io/apiserver
	github.com/prometheus/client_model v0.6.3 // a histogram's labels, which are known only when it is exported; the types that client_golang's Metric is written into; comes with k8s.io/apiserver
	github.com/spf13/cobra v1.10.2 // the command of the example; what API servers are written with; comes with k8s.io/apiserver
	github.com/spf13/pflag v1.0.10 // its flags; the flags of k8s.io/apiserver's options are of this type; comes with k8s.io/apiserver
	github.com/stretchr/testify v1.12.1 // assertions that print the difference; known to everyone who has tested Go; already in the graph
	go.etcd.io/bbolt v1.5.0 // to see whether a data directory can be opened before etcd, which waits for ever for a locked one, is started on it; the file format of etcd's own database; linked with the etcd server
	go.etcd.io/etcd/api/v3 v3.7.3 // etcd's messages and error codes, where the client hands them through; part of the client; comes with k8s.io/apiserver
	go.etcd.io/etcd/client/pkg/v3 v3.7.3 // TLS files as etcd reads them; the file lock of devserver; part of the client; comes with k8s.io/apiserver
	go.etcd.io/etcd/client/v3 v3.7.3 // the one client of storage/etcd3; the only complete client of etcd; comes with k8s.io/apiserver
	go.etcd.io/etcd/server/v3 v3.7.3 // the etcd inside the process (storage/etcd3/embedded), and the binary that integration tests run in a container or as a process; the same version as the client; a test keeps it out of production packages
	go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc v0.72.0 // spans for requests to etcd; as above; comes with k8s.io/apiserver
	go.opentelemetry.io/otel v1.47.0 // the attributes of the events of reads in a request's span; what k8s.io/component-base's tracing takes; comes with k8s.io/apiserver
	go.opentelemetry.io/otel/sdk v1.47.0 // a recorder that shows that a request to etcd made a span; the SDK of the tracer; already in the graph
	go.opentelemetry.io/otel/trace v1.47.0 // whether a request is traced, and the TracerProvider that a backend is given; comes with k8s.io/apiserver
	go.uber.org/goleak v1.3.0 // a goroutine that outlives its test fails it; what etcd uses for the same
	go.uber.org/zap v1.27.1 // the etcd client's logger; the etcd client takes no other; comes with k8s.io/apiserver
	golang.org/x/sync v0.24.0 // the server of devserver, its etcd and the announcement that it is ready, as one group that ends together; the turn to start or end a cache, which a request waits for no longer than it lives; the Go project's own; comes with k8s.io/apiserver
	golang.org/x/sys v0.49.0 // seccomp filters, which make the fsync of an etcd member slow (integration/internal/slowdisk); the Go project's own; comes with k8s.io/apiserver
	google.golang.org/grpc v1.85.0 // dial options, outgoing metadata that gives each resource its own watch stream; what the etcd client speaks; comes with k8s.io/apiserver
	google.golang.org/protobuf v1.36.12 // comparing etcd's messages; what they are made with; comes with k8s.io/apiserver
	k8s.io/api v0.38.0-beta.0 // the types of delegated authentication and of the tests' pods; the only source of those types; comes with k8s.io/apiserver
	k8s.io/apimachinery v0.38.0-beta.0 // objects, labels, fields, API errors, watch events; the types of the public surface; comes with k8s.io/apiserver
	k8s.io/apiserver v0.38.0-beta.0 // storage.Interface and its types, the etcd3 storage that we wrap, the generic server that we plug into; the project exists to extend it
	k8s.io/client-go v0.38.0-beta.0 // the reflector that follows the storage, informers, cache.Indexers; the reflector is the most exercised list-and-watch loop there is; comes with k8s.io/apiserver
	k8s.io/component-base v0.38.0-beta.0 // feature gates, the server's own metrics registry, version; the registry that an API server serves on /metrics; comes with k8s.io/apiserver
	k8s.io/klog/v2 v2.140.0 // structured, contextual logs; what an API server logs with, so that its flags govern ours; comes with k8s.io/apiserver
	k8s.io/kube-openapi v0.0.0-20261014044854-ca3452a79603 // the OpenAPI definitions that the generic server demands; the only producer of what it reads; comes with k8s.io/apiserver
	k8s.io/utils v0.0.0-20260626114624-be93311217bd // clocks that tests control, the copy-on-write B-tree behind storage/memory, a fork that Kubernetes keeps; comes with k8s.io/apiserver
	pgregory.net/rapid v1.3.0 // random operations against a naive model, shrunk to the shortest that fails, with its seed; no dependency of its own, shrinking built in
	sigs.k8s.io/randfill v1.0.0 // random objects for round trips between versions; what k8s.io/apimachinery's round-trip tests take; already in the graph
	sigs.k8s.io/structured-merge-diff/v6 v6.4.2 // the fields that server-side apply gives nobody ownership of; the type is in k8s.io/apiserver's interface; comes with k8s.io/apiserver
	sigs.k8s.io/yaml v1.6.0 // the rules file of dashboards/, and Prometheus' configuration in tests; what Kubernetes reads and writes YAML with; comes with k8s.io/apiserver
)

require (
	cel.dev/cel-go v0.33.2 // indirect
	cel.dev/expr v0.25.3 // indirect
	github.com/antlr4-go/antlr/v4 v4.13.1 // indirect
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/blang/semver/v4 v4.0.0 // indirect
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/coreos/go-semver v0.3.1 // indirect
	github.com/coreos/go-systemd/v22 v22.7.0 // indirect
	github.com/davecgh/go-spew v1.1.2-0.20180830191138-d8f796af33cc // indirect
	github.com/dustin/go-humanize v1.0.1 // indirect
	github.com/emicklei/go-restful/v3 v3.14.0 // indirect
	github.com/felixge/httpsnoop v1.1.0 // indirect
	github.com/fsnotify/fsnotify v1.9.0 // indirect
	github.com/fxamacker/cbor/v2 v2.9.4 // indirect
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/go-openapi/jsonpointer v1.0.2 // indirect
	github.com/go-openapi/jsonreference v1.0.2 // indirect
	github.com/go-openapi/swag/conv v0.29.2 // indirect
	github.com/go-openapi/swag/jsonutils v0.29.2 // indirect
	github.com/go-openapi/swag/pools v0.29.2 // indirect
	github.com/go-openapi/swag/typeutils v0.29.2 // indirect
	github.com/golang-jwt/jwt/v5 v5.3.1 // indirect
	github.com/golang/protobuf v1.5.4 // indirect
	github.com/google/gnostic-models v0.7.1 // indirect
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/gorilla/websocket v1.5.4-0.20250319132907-e064f32e3674 // indirect
	github.com/grpc-ecosystem/go-grpc-middleware/v2 v2.3.3 // indirect
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.29.0 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/jonboulle/clockwork v0.5.0 // indirect
	github.com/json-iterator/go v1.1.12 // indirect
	github.com/kylelemons/godebug v1.1.0 // indirect
	github.com/modern-go/concurrent v0.0.0-20180306012644-bacd9c7ef1dd // indirect
	github.com/modern-go/reflect2 v1.0.3-0.20250322232337-35a7c28c31ee // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/pandatix/go-abnf v0.5.5 // indirect
	github.com/pmezard/go-difflib v1.0.1-0.20181226105442-5d4384ee4fb2 // indirect
	github.com/prometheus/common v0.73.1 // indirect
	github.com/prometheus/procfs v0.22.0 // indirect
	github.com/sirupsen/logrus v1.10.2 // indirect
	github.com/soheilhy/cmux v0.1.5 // indirect
	github.com/tmc/grpc-websocket-proxy v0.0.0-20220101234140-673ab2c3ae75 // indirect
	github.com/x448/float16 v0.8.4 // indirect
	github.com/xiang90/probing v0.0.0-20221125231312-a49e3df8f510 // indirect
	go.etcd.io/etcd/pkg/v3 v3.7.3 // indirect
	go.etcd.io/raft/v3 v3.7.0 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp v0.72.0 // indirect
	go.opentelemetry.io/otel/exporters/otlp/otlptrace v1.47.0 // indirect
	go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc v1.45.0 // indirect
	go.opentelemetry.io/otel/log v1.47.0 // indirect
	go.opentelemetry.io/otel/metric v1.47.0 // indirect
	go.opentelemetry.io/proto/otlp v1.11.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	go.yaml.in/yaml/v2 v2.4.4 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/exp v0.0.0-20260908205506-85c1c2202aba // indirect
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/oauth2 v0.37.0 // indirect
	golang.org/x/term v0.47.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	golang.org/x/time v0.16.0 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260928230214-8a89bd6388cc // indirect
	gopkg.in/evanphx/json-patch.v4 v4.13.0 // indirect
	gopkg.in/inf.v0 v0.9.1 // indirect
	gopkg.in/natefinch/lumberjack.v2 v2.2.1 // indirect
	k8s.io/kms v0.38.0-beta.0 // indirect
	k8s.io/streaming v0.38.0-beta.0 // indirect
	sigs.k8s.io/apiserver-network-proxy/konnectivity-client v0.37.0 // indirect
	sigs.k8s.io/json v0.0.0-20250730193827-2d320260d730 // indirect
	sigs.k8s.io/structured-merge-diff/v7 v7.0.1 // indirect
)

replace sigs.k8s.io/structured-merge-diff/v7 => sigs.k8s.io/structured-merge-diff/v7 v7.0.0
