// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// podPrefix is the resource prefix that the suites have in all their keys.
const podPrefix = poddata.Prefix

var pods = poddata.Resource

// podConfig is a Cacher's configuration for pods with all defaults.
func podConfig(wrapped storage.Interface, codec runtime.Codec) cacher.Config {
	return cacher.Config{
		Storage:        wrapped,
		Versioner:      storage.APIObjectVersioner{},
		GroupResource:  pods,
		ResourcePrefix: podPrefix,
		KeyFunc:        poddata.Key,
		GetAttrsFunc:   poddata.Attrs,
		NewFunc:        poddata.New,
		NewListFunc:    poddata.NewList,
		Codec:          codec,
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
	cfg.IndexerFuncs = poddata.Triggers()
	cfg.Indexers = &cache.Indexers{
		storage.FieldIndex("spec.nodeName"):      by(func(pod *example.Pod) string { return pod.Spec.NodeName }),
		storage.FieldIndex("metadata.namespace"): by(func(pod *example.Pod) string { return pod.Namespace }),
	}
}
