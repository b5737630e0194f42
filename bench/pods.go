// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/storage"
)

const (
	// prefix is the key prefix of Pods.
	prefix = "/pods/"
	// namespaces is how many namespaces the Pods are in, in equal parts.
	namespaces = 100
	// apps is how many values the label has that selectors select by: one in
	// a hundred Pods has each.
	apps = 100
	// appLabel is that label.
	appLabel = "app"
)

var podResource = schema.GroupResource{Resource: "pods"}

func newPod() runtime.Object     { return &corev1.Pod{} }
func newPodList() runtime.Object { return &corev1.PodList{} }

func podKey(obj runtime.Object) (string, error) { return storage.NamespaceKeyFunc(prefix, obj) }

// podCodec returns the codec that Pods would be stored with. The codec is made
// once, so as not to count as a cache's memory.
var podCodec = sync.OnceValues(func() (runtime.Codec, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return serializer.NewCodecFactory(scheme).LegacyCodec(corev1.SchemeGroupVersion), nil
})

// podAttrs returns what selectors select Pods by: labels and nine fields.
func podAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, nil, fmt.Errorf("%T is no Pod", obj)
	}
	return pod.Labels, fields.Set{
		"metadata.name":            pod.Name,
		"metadata.namespace":       pod.Namespace,
		"spec.nodeName":            pod.Spec.NodeName,
		"spec.restartPolicy":       string(pod.Spec.RestartPolicy),
		"spec.schedulerName":       pod.Spec.SchedulerName,
		"spec.serviceAccountName":  pod.Spec.ServiceAccountName,
		"status.phase":             string(pod.Status.Phase),
		"status.podIP":             pod.Status.PodIP,
		"status.nominatedNodeName": pod.Status.NominatedNodeName,
	}, nil
}

// predicate selects Pods by a label and a field selector, "" for all.
func predicate(label, field string) (storage.SelectionPredicate, error) {
	labelSelector, err := labels.Parse(label)
	if err != nil {
		return storage.SelectionPredicate{}, err
	}
	fieldSelector, err := fields.ParseSelector(field)
	if err != nil {
		return storage.SelectionPredicate{}, err
	}
	return storage.SelectionPredicate{Label: labelSelector, Field: fieldSelector, GetAttrs: podAttrs}, nil
}

func namespaceName(i int) string { return fmt.Sprintf("ns-%02d", i%namespaces) }
func appName(i int) string       { return fmt.Sprintf("app-%02d", i%apps) }

// makePods returns n Pods in the order of their keys, at resourceVersions 1 to
// n. The struct of one takes 1.2 KB; what hangs from it is an ordinary Pod's.
func makePods(n int) []*corev1.Pod {
	pods := make([]*corev1.Pod, n)
	each := n / namespaces
	for i := range pods {
		pods[i] = makePod(namespaceName(i/max(1, each)), i)
		pods[i].ResourceVersion = strconv.Itoa(i + 1)
	}
	return pods
}

func makePod(namespace string, i int) *corev1.Pod {
	app := appName(i)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("pod-%06d", i),
			Labels: map[string]string{appLabel: app, "tier": "backend", "release": "stable"},
		},
		Spec: corev1.PodSpec{
			NodeName: "node-" + strconv.Itoa(i%1000), RestartPolicy: corev1.RestartPolicyAlways,
			SchedulerName: "default-scheduler", ServiceAccountName: "default",
			Containers: []corev1.Container{{Name: "main", Image: "registry.example/" + app + ":1.0"}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255),
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
				{Type: corev1.PodReady, Status: corev1.ConditionTrue},
			},
		},
	}
}

// updates returns n writes that change existing Pods, one after the other and
// again from the start, each at the next resourceVersion.
func updates(pods []*corev1.Pod, n int) []*corev1.Pod {
	out := make([]*corev1.Pod, n)
	for i := range out {
		pod := *pods[i%len(pods)]
		pod.ResourceVersion = strconv.Itoa(len(pods) + i + 1)
		out[i] = &pod
	}
	return out
}

// findPod finds a Pod by its key, nil if there is none.
func findPod(pods []*corev1.Pod, key string) *corev1.Pod {
	i, found := slices.BinarySearchFunc(pods, key, func(pod *corev1.Pod, key string) int {
		return strings.Compare(prefix+pod.Namespace+"/"+pod.Name, key)
	})
	if !found {
		return nil
	}
	return pods[i]
}
