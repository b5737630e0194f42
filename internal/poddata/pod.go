// SPDX-License-Identifier: Apache-2.0

// Package poddata is the resource cached by tests and benchmarks: the example API's Pods, with
// typical attributes.
package poddata

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"
)

// Prefix is the key prefix of Pods.
const Prefix = "/pods/"

// Resource is the resource of Pods.
var Resource = schema.GroupResource{Resource: "pods"}

// New returns an empty Pod.
func New() runtime.Object { return &example.Pod{} }

// NewList returns an empty list of Pods.
func NewList() runtime.Object { return &example.PodList{} }

// Scheme returns a scheme of the example API.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	for _, add := range []func(*runtime.Scheme) error{example.AddToScheme, examplev1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
}

// Codec returns the protobuf codec for storing Pods.
func Codec() runtime.Codec {
	scheme := Scheme()
	proto := protobuf.NewSerializer(scheme, scheme)
	return serializer.NewCodecFactory(scheme).CodecForVersions(proto, proto, schema.GroupVersions{examplev1.SchemeGroupVersion}, nil)
}

// JSONCodec returns a codec that stores Pods as JSON. Some suites of k8s.io/apiserver require it,
// because they add blanks to stored values.
func JSONCodec() runtime.Codec {
	return serializer.NewCodecFactory(Scheme()).LegacyCodec(examplev1.SchemeGroupVersion)
}

// Key returns a Pod's storage key.
func Key(obj runtime.Object) (string, error) { return storage.NamespaceKeyFunc(Prefix, obj) }

// Attrs returns the labels and selectable fields of a Pod.
func Attrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	pod, ok := obj.(*example.Pod)
	if !ok {
		return nil, nil, fmt.Errorf("%T is no Pod", obj)
	}
	return pod.Labels, fields.Set{
		"metadata.name":      pod.Name,
		"metadata.namespace": pod.Namespace,
		"spec.nodeName":      pod.Spec.NodeName,
		"spec.restartPolicy": string(pod.Spec.RestartPolicy),
		"status.phase":       string(pod.Status.Phase),
	}, nil
}

// Pod returns a Pod by "namespace/name". Attributes are "spec.nodeName=...", "status.phase=..." or
// labels as "key=value".
func Pod(name string, attrs ...string) *example.Pod {
	namespace, name, _ := strings.Cut(name, "/")
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	for _, attr := range attrs {
		key, value, _ := strings.Cut(attr, "=")
		switch key {
		case "spec.nodeName":
			pod.Spec.NodeName = value
		case "status.phase":
			pod.Status.Phase = example.PodPhase(value)
		default:
			if pod.Labels == nil {
				pod.Labels = map[string]string{}
			}
			pod.Labels[key] = value
		}
	}
	return pod
}

// Predicate selects Pods by label and field selectors. "" selects all.
func Predicate(label, field string) storage.SelectionPredicate {
	labelSelector, err := labels.Parse(label)
	if err != nil {
		panic(err)
	}
	fieldSelector, err := fields.ParseSelector(field)
	if err != nil {
		panic(err)
	}
	return storage.SelectionPredicate{Label: labelSelector, Field: fieldSelector, GetAttrs: Attrs}
}

// Triggers returns the trigger functions of Pods: by node, as in Kubernetes.
func Triggers() storage.IndexerFuncs {
	return storage.IndexerFuncs{"spec.nodeName": func(obj runtime.Object) string {
		return obj.(*example.Pod).Spec.NodeName
	}}
}
