package watchcache_test

// Keeps `go mod tidy` from dropping what packages under construction need.
import (
	_ "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "go.etcd.io/etcd/client/v3"
	_ "go.etcd.io/etcd/server/v3/embed"
	_ "go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	_ "go.uber.org/goleak"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/apiserver/pkg/server/options"
	_ "k8s.io/apiserver/pkg/storage/testing"
	_ "k8s.io/client-go/kubernetes"
	_ "k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/klog/v2"
	_ "k8s.io/kube-openapi/pkg/builder3"
	_ "github.com/spf13/cobra"
	_ "github.com/stretchr/testify/require"
	_ "k8s.io/utils/clock/testing"
	_ "pgregory.net/rapid"
)
