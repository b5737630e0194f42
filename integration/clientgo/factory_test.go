// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1beta1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	informers "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/informers/externalversions"
)

// TestSharedInformerFactory holds the contract of a generated factory. In process it
// is one factory for informers that package informer makes.
func TestSharedInformerFactory(t *testing.T) {
	t.Run("passes its options on", testFactoryOptions)
	t.Run("equals etcd in all versions", func(t *testing.T) { bothTransports(t, testFactoryVersions) })
}

// factory is a generated factory, and the informer of the way's devices in it.
type factory struct {
	informers.SharedInformerFactory
	devices func() cache.SharedIndexInformer
}

func newFactory(t *testing.T, fx *fixture, via transport, namespace string, options ...informers.SharedInformerOption) factory {
	t.Helper()
	options = append(options, informers.WithNamespace(namespace))
	f := factory{SharedInformerFactory: informers.NewSharedInformerFactoryWithOptions(fx.client(t), 0, options...)}
	f.devices = f.Fleet().V1().Devices().Informer
	if via.inProcess {
		f.devices = func() cache.SharedIndexInformer {
			return f.InformerFor(&fleet.Device{}, func(_ versioned.Interface, resync time.Duration) cache.SharedIndexInformer {
				return via.informer(t, fx, namespace, resync, cache.Indexers{})
			})
		}
	}
	return f
}

// start starts the factory's informers until the test ends, and then waits for them.
func (f factory) start(t *testing.T) {
	t.Helper()
	f.StartWithContext(t.Context())
	t.Cleanup(f.Shutdown)
}

// testFactoryOptions: a factory's selector reaches the server, and what comes back
// may be transformed.
func testFactoryOptions(t *testing.T) {
	fx := sharedFixture(t)
	ns := fx.newNamespace(t)
	d := fx.writer(t, ns)
	d.create(t, "one")
	fx.settle(t, d.update(t, "one", "chosen").ResourceVersion)
	d.create(t, "two")
	f := newFactory(t, fx, transport{}, ns,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "spec.owner=chosen" }),
		informers.WithTransform(transform))
	informer := f.devices()
	f.start(t)
	awaitSync(t, informer.HasSyncedChecker())
	require.Equal(t, []string{ns + "/one"}, informer.GetStore().ListKeys())
	require.Contains(t, mustInternal(t, informer.GetStore().List()[0]).Labels, "transformed")
}

func testFactoryVersions(t *testing.T, fx *fixture, via transport) {
	ns := fx.newNamespace(t)
	d := fx.writer(t, ns)
	d.createMany(t, "early", 5)
	f := newFactory(t, fx, via, ns)
	all := []cache.SharedIndexInformer{f.devices(), f.Fleet().V1beta1().Devices().Informer()}
	f.start(t)
	d.update(t, "early-001", "someone")
	d.delete(t, "early-002")
	d.create(t, "late")
	for _, informer := range all {
		fx.requireEqual(t, informer.GetStore(), ns)
	}
	require.IsType(t, &v1beta1.Device{}, all[1].GetStore().List()[0])
}
