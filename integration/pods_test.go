// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
)

// podPrefix is the resource prefix that the suites have in all their keys.
const podPrefix = "/pods/"

var pods = schema.GroupResource{Resource: "pods"}

// podCodec writes pods as JSON, which some suites rely on: they put blanks
// before a stored value.
func podCodec() runtime.Codec {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
	return serializer.NewCodecFactory(scheme).LegacyCodec(examplev1.SchemeGroupVersion)
}

func newPod() runtime.Object     { return &example.Pod{} }
func newPodList() runtime.Object { return &example.PodList{} }

func podAttributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	pod, ok := obj.(*example.Pod)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not a pod", obj)
	}
	return pod.Labels, fields.Set{
		"metadata.name":      pod.Name,
		"metadata.namespace": pod.Namespace,
		"spec.nodeName":      pod.Spec.NodeName,
		"spec.restartPolicy": string(pod.Spec.RestartPolicy),
		"status.phase":       string(pod.Status.Phase),
	}, nil
}

// podConfig is a Cacher's configuration for pods with all defaults.
func podConfig(wrapped storage.Interface, codec runtime.Codec) cacher.Config {
	return cacher.Config{
		Storage:        wrapped,
		Versioner:      storage.APIObjectVersioner{},
		GroupResource:  pods,
		ResourcePrefix: podPrefix,
		KeyFunc: func(obj runtime.Object) (string, error) {
			return storage.NamespaceKeyFunc(podPrefix, obj)
		},
		GetAttrsFunc: podAttributes,
		NewFunc:      newPod,
		NewListFunc:  newPodList,
		Codec:        codec,
	}
}

// clusterScoped takes the namespace out of the keys.
func clusterScoped(cfg *cacher.Config) {
	cfg.KeyFunc = func(obj runtime.Object) (string, error) {
		return storage.NoNamespaceKeyFunc(podPrefix, obj)
	}
}

// indexed adds the trigger and the indexes that a server has for real pods.
func indexed(cfg *cacher.Config) {
	by := func(attribute func(*example.Pod) string) cache.IndexFunc {
		return func(obj any) ([]string, error) {
			pod, ok := obj.(*example.Pod)
			if !ok {
				return nil, fmt.Errorf("%T is not a pod", obj)
			}
			return []string{attribute(pod)}, nil
		}
	}
	nodeName := func(pod *example.Pod) string { return pod.Spec.NodeName }
	cfg.IndexerFuncs = storage.IndexerFuncs{
		"spec.nodeName": func(obj runtime.Object) string { return nodeName(obj.(*example.Pod)) },
	}
	cfg.Indexers = &cache.Indexers{
		storage.FieldIndex("spec.nodeName"):      by(nodeName),
		storage.FieldIndex("metadata.namespace"): by(func(pod *example.Pod) string { return pod.Namespace }),
	}
}
