// SPDX-License-Identifier: Apache-2.0

package heapsize_test

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// aPod returns a Pod as a Deployment's are, with so many containers.
func aPod(containers int) *corev1.Pod {
	always := true
	seconds := int64(300)
	stamp := metav1.NewTime(time.Unix(1_700_000_000, 0))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-6d4cf56db6-x7k2p", GenerateName: "web-6d4cf56db6-", Namespace: "shop",
			UID: types.UID("0b6f6cd4-5bd1-4b5e-9d1f-6c9d7f2e1a33"), ResourceVersion: "1234567", CreationTimestamp: stamp,
			Labels:      map[string]string{"app": "web", "pod-template-hash": "6d4cf56db6", "tier": "frontend"},
			Annotations: map[string]string{"example.com/restarted-at": "2023-11-14T22:13:20Z"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-6d4cf56db6",
				UID: "5a1e6b3c-8f2d-4f7a-8f39-2f4f9cf1e2d0", Controller: &always, BlockOwnerDeletion: &always,
			}},
			ManagedFields: []metav1.ManagedFieldsEntry{managed("kube-controller-manager", "", containers), managed("kubelet", "status", containers)},
		},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst, ServiceAccountName: "default",
			NodeName: "node-17", SchedulerName: "default-scheduler", SecurityContext: &corev1.PodSecurityContext{},
			Tolerations: []corev1.Toleration{
				{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: &seconds},
				{Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: &seconds},
			},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.244.3.17", HostIP: "192.168.7.4", StartTime: &stamp, QOSClass: corev1.PodQOSBurstable,
			PodIPs: []corev1.PodIP{{IP: "10.244.3.17"}}, HostIPs: []corev1.HostIP{{IP: "192.168.7.4"}},
		},
	}
	for _, typ := range []corev1.PodConditionType{"PodScheduled", "Initialized", "ContainersReady", "Ready"} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: typ, Status: "True", LastTransitionTime: stamp})
	}
	for i := range containers {
		name := fmt.Sprintf("container-%d", i)
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: name, Image: "registry.example/shop/" + name + ":1.24.3", ImagePullPolicy: "IfNotPresent",
			TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: "File",
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: "TCP"}},
			Env:   []corev1.EnvVar{{Name: "MODE", Value: "production"}, {Name: "LOG_LEVEL", Value: "info"}},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("128Mi")},
				Limits:   corev1.ResourceList{"memory": resource.MustParse("256Mi")},
			},
			VolumeMounts: []corev1.VolumeMount{{Name: "token", ReadOnly: true, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}},
		})
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: name, Ready: true, Image: "registry.example/shop/" + name + ":1.24.3", Started: &always,
			ImageID:     "sha256:" + strings.Repeat("0123456789abcdef", 4),
			ContainerID: "containerd://" + strings.Repeat("fedcba9876543210", 4),
			State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: stamp}},
		})
	}
	return pod
}

// managed returns what a manager of an object with so many parts is said to
// own of it.
func managed(manager, subresource string, parts int) metav1.ManagedFieldsEntry {
	fields := `{"f:metadata":{"f:labels":{".":{},"f:app":{},"f:tier":{}}}`
	for i := range parts {
		fields += fmt.Sprintf(`,"k:{\"name\":\"container-%d\"}":{".":{},"f:image":{},"f:imagePullPolicy":{},"f:name":{},"f:resources":{}}`, i)
	}
	stamp := metav1.NewTime(time.Unix(1_700_000_000, 0))
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &stamp,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields + "}"), Subresource: subresource,
	}
}
