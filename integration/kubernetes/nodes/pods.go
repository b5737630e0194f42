// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// watch follows the pods of a node, or of all nodes if name is empty, until ctx ends.
func (a *agent) watch(ctx context.Context, client kubernetes.Interface, name string) {
	selector := fields.OneTermNotEqualSelector("spec.nodeName", "")
	if name != "" {
		selector = fields.OneTermEqualSelector("spec.nodeName", name)
	}
	pods := client.CoreV1().Pods(corev1.NamespaceAll)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			a.counts.Lists.Add(1)
			options.FieldSelector = selector.String()
			list, err := pods.List(ctx, options)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			a.counts.Watches.Add(1)
			if options.SendInitialEvents != nil && *options.SendInitialEvents {
				a.counts.Lists.Add(1)
			}
			options.FieldSelector = selector.String()
			w, err := pods.Watch(ctx, options)
			if err != nil {
				a.noteGone(err)
				return nil, err
			}
			return watch.Filter(w, func(event watch.Event) (watch.Event, bool) {
				if event.Type == watch.Error {
					if status, ok := event.Object.(*metav1.Status); ok && status.Code == http.StatusGone {
						a.counts.Gone.Add(1)
					}
				}
				return event, true
			}), nil
		},
	}
	reflector := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, client), &corev1.Pod{}, &store{agent: a, held: map[string]task{}},
		cache.ReflectorOptions{Name: "pods of " + name, TypeDescription: "pods"})
	reflector.RunWithContext(ctx)
}

// store puts what a reflector brings into the queue. Only its reflector calls it.
type store struct {
	*agent
	held map[string]task // by namespace and name
}

var _ cache.ReflectorStore = &store{}

func (s *store) add(object any) error {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("%T is not a pod", object)
	}
	key := pod.Namespace + "/" + pod.Name
	t := task{pod.Namespace, pod.Name, string(pod.UID)}
	if was, ok := s.held[key]; ok && was != t {
		s.pods.Delete(was)
	}
	s.held[key] = t
	s.pods.Store(t, pod)
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodPending || pod.Status.Phase == "" {
		s.queue.Add(t)
	}
	return nil
}

// Add implements cache.ReflectorStore.
func (s *store) Add(object any) error { return s.add(object) }

// Update implements cache.ReflectorStore.
func (s *store) Update(object any) error { return s.add(object) }

// Delete implements cache.ReflectorStore.
func (s *store) Delete(object any) error {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
	if err != nil {
		return err
	}
	s.drop(key)
	return nil
}

func (s *store) drop(key string) {
	s.pods.Delete(s.held[key])
	delete(s.held, key)
}

// Replace implements cache.ReflectorStore.
func (s *store) Replace(list []any, _ string) error {
	listed := map[string]bool{}
	for _, object := range list {
		key, err := cache.MetaNamespaceKeyFunc(object)
		if err != nil {
			return err
		}
		listed[key] = true
	}
	for key := range s.held {
		if !listed[key] {
			s.drop(key)
		}
	}
	for _, object := range list {
		if err := s.add(object); err != nil {
			return err
		}
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (s *store) Resync() error { return nil }

// run reports that all containers of a pod run and are ready.
func (a *agent) run(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	now := metav1.Now()
	ip, host := podAddress(pod), address(indexOf(pod.Spec.NodeName))
	var containers []corev1.ContainerStatus
	for _, c := range pod.Spec.Containers {
		started := true
		containers = append(containers, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: "none://" + c.Image, ContainerID: "none://" + string(pod.UID), Ready: true, Started: &started,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	status := corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &now, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, ContainerStatuses: containers,
		HostIP: host, HostIPs: []corev1.HostIP{{IP: host}}, Conditions: podConditions(corev1.ConditionTrue, now),
	}
	if err := patchStatus(ctx, client, pod, status); err != nil {
		return err
	}
	a.counts.Ready.Add(1)
	return nil
}

// end reports that the containers of a pod have ended, and deletes the pod.
func (a *agent) end(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	now := metav1.Now()
	var containers []corev1.ContainerStatus
	for _, c := range pod.Spec.Containers {
		containers = append(containers, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: "none://" + c.Image, ContainerID: "none://" + string(pod.UID),
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: now}},
		})
	}
	status := corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: containers, Conditions: podConditions(corev1.ConditionFalse, now)}
	if pod.Status.Phase != corev1.PodSucceeded {
		if err := patchStatus(ctx, client, pod, status); err != nil {
			return err
		}
	}
	err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if err == nil {
		a.counts.Deleted.Add(1)
	}
	return err
}

func podConditions(ready corev1.ConditionStatus, now metav1.Time) (all []corev1.PodCondition) {
	of := func(kind corev1.PodConditionType, status corev1.ConditionStatus) {
		all = append(all, corev1.PodCondition{Type: kind, Status: status, LastTransitionTime: now})
	}
	of(corev1.PodReadyToStartContainers, ready)
	of(corev1.PodInitialized, corev1.ConditionTrue)
	of(corev1.PodReady, ready)
	of(corev1.ContainersReady, ready)
	return all
}

// patchStatus writes the status of the pod with this UID, and of no later one of the name.
func patchStatus(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, status corev1.PodStatus) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// podAddress is made of the pod's UID: nobody can reach it, and few share one.
func podAddress(pod *corev1.Pod) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(pod.UID))
	sum := h.Sum32()
	return fmt.Sprintf("100.%d.%d.%d", 64+sum>>16&63, sum>>8&255, sum&255)
}

// noteGone counts an error that is 410, Gone.
func (a *agent) noteGone(err error) {
	if status, ok := err.(interface{ Status() metav1.Status }); ok && status.Status().Code == http.StatusGone {
		a.counts.Gone.Add(1)
	}
}
