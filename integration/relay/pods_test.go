// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	registryrest "k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kube-openapi/pkg/common"

	"github.com/kube-watchcache/watchcache/integration/internal/apiserver"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// serveCore gives the upstream the part of a kube-apiserver that has a core resource, in
// JSON and protobuf, over its etcd. attributes returns the fields to select by.
func (u *upstream) serveCore(t *testing.T, kind string, object, list runtime.Object, attributes func(runtime.Object) fields.Set) {
	t.Helper()
	name := strings.ToLower(kind)
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	scheme.AddUnversionedTypes(corev1.SchemeGroupVersion, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	for _, version := range []string{"v1", runtime.APIVersionInternal} {
		scheme.AddKnownTypes(schema.GroupVersion{Version: version}, object, list)
	}
	require.NoError(t, scheme.AddFieldLabelConversionFunc(corev1.SchemeGroupVersion.WithKind(kind),
		func(label, value string) (string, string, error) { return label, value, nil }))
	codecs := serializer.NewCodecFactory(scheme)
	stored := storagebackend.NewDefaultConfig("/core", codecs.LegacyCodec(corev1.SchemeGroupVersion))
	stored.Transport.ServerList, stored.CompactionInterval = u.etcd.Endpoints(), 0
	options := genericoptions.NewEtcdOptions(stored)
	config := genericapiserver.NewConfig(codecs)
	config.ExternalAddress, config.LoopbackClientConfig = "127.0.0.1:443", &rest.Config{}
	config.EffectiveVersion, config.SkipOpenAPIInstallation = compatibility.DefaultBuildEffectiveVersion(), true
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(func(common.ReferenceCallback) map[string]common.OpenAPIDefinition { return nil },
		openapinamer.NewDefinitionNamer(scheme))
	config.OpenAPIV3Config.IgnorePrefixes = []string{genericapiserver.DefaultLegacyAPIPrefix}
	config.RESTOptionsGetter = options.CreateRESTOptionsGetter(&genericoptions.SimpleStorageFactory{StorageConfig: options.StorageConfig}, nil)
	server, err := config.Complete(nil).New(name, genericapiserver.NewEmptyDelegate())
	require.NoError(t, err)
	t.Cleanup(server.Destroy)

	resource := corev1.Resource(name + "s")
	store := &genericregistry.Store{
		NewFunc: object.DeepCopyObject, NewListFunc: list.DeepCopyObject,
		DefaultQualifiedResource: resource, SingularQualifiedResource: corev1.Resource(name),
		TableConvertor: registryrest.NewDefaultTableConvertor(resource),
	}
	strategy := poddata.NewStrategy(scheme)
	store.CreateStrategy, store.UpdateStrategy, store.DeleteStrategy = strategy, strategy, strategy
	require.NoError(t, store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: config.RESTOptionsGetter, AttrFunc: func(o runtime.Object) (labels.Set, fields.Set, error) {
		m, err := meta.Accessor(o)
		if err != nil {
			return nil, nil, err
		}
		set := attributes(o)
		set["metadata.name"], set["metadata.namespace"] = m.GetName(), m.GetNamespace()
		return m.GetLabels(), set, nil
	}}))
	t.Cleanup(store.Destroy)
	group := genericapiserver.NewDefaultAPIGroupInfo("", scheme, metav1.ParameterCodec, codecs)
	group.VersionedResourcesStorageMap["v1"] = map[string]registryrest.Storage{resource.Resource: store}
	require.NoError(t, server.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, &group))
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.core = server.Handler
}

// Built-in types come in protobuf and in JSON, the same to the byte as upstream, and
// informers select them by field.
func TestPods(t *testing.T) {
	noLeaks(t)
	u := startUpstream(t, apiserver.Ours)
	u.serveCore(t, "Pod", &corev1.Pod{}, &corev1.PodList{}, func(o runtime.Object) fields.Set {
		pod := o.(*corev1.Pod)
		return fields.Set{"spec.nodeName": pod.Spec.NodeName, "spec.schedulerName": pod.Spec.SchedulerName}
	})
	r := u.startRelay(t, "--resources=pods")
	clients := map[string]*kubernetes.Clientset{}
	for name, config := range map[string]*rest.Config{"upstream": u.config("alice"), "relay": r.config("alice")} {
		config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
		var err error
		clients[name], err = kubernetes.NewForConfigAndClient(config, apiserver.Connect(t, config))
		require.NoError(t, err)
	}
	put := func(n int) *corev1.Pod {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprintf("pod-%d", n), Labels: map[string]string{"n": fmt.Sprint(n)}},
			Spec:       corev1.PodSpec{NodeName: fmt.Sprintf("node-%d", n%2), Containers: []corev1.Container{{Name: "c", Image: "<&>"}}},
		}
		created, err := clients["upstream"].CoreV1().Pods("a").Create(within(t), pod, metav1.CreateOptions{})
		require.NoError(t, err)
		return created
	}
	for n := range 6 {
		put(n)
	}
	for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf", "application/yaml"} {
		for _, selector := range []string{"", "?fieldSelector=spec.nodeName%3Dnode-1", "?labelSelector=n%3D3", "?fieldSelector=spec.schedulerName%3Dnone"} {
			want := fetch(t, u.config("alice"), "/api/v1/pods"+selector, accept)
			for range 3 { // encoded, kept and sent from kept bytes
				require.Equal(t, want, fetch(t, r.config("alice"), "/api/v1/pods"+selector, accept), "%s as %s", selector, accept)
			}
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(clients["relay"], 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "spec.nodeName=node-0" }))
	informer := factory.Core().V1().Pods()
	synced := informer.Informer().HasSynced
	ctx, cancel := context.WithCancel(t.Context())
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	defer cancel()
	require.True(t, cache.WaitForCacheSync(within(t).Done(), synced))
	want := put(8)
	put(9)
	until(t, "the informer has the new pod", func() bool { pods, _ := informer.Lister().List(labels.Everything()); return len(pods) == 4 })
	got, err := informer.Lister().Pods("a").Get("pod-8")
	require.NoError(t, err)
	require.Equal(t, want, got)
	w, err := clients["relay"].CoreV1().Pods("a").Watch(within(t), metav1.ListOptions{ResourceVersion: want.ResourceVersion})
	require.NoError(t, err)
	defer w.Stop()
	event := <-w.ResultChan()
	require.Equal(t, watch.Added, event.Type)
	require.Equal(t, "pod-9", event.Object.(*corev1.Pod).Name)
}
