// SPDX-License-Identifier: Apache-2.0

package realistic

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var intstr8080 = intstr.FromInt32(8080)

// podManagers returns the managed fields of a Pod's managers: its controller, the network plugin,
// `kubectl rollout restart`, and the kubelet.
func podManagers(pod *corev1.Pod) []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{
		manager("kubectl-rollout", "", pod.CreationTimestamp, `{"f:metadata":{"f:annotations":{"f:kubectl.kubernetes.io/restartedAt":{}}}}`),
		manager("calico", "status", pod.CreationTimestamp,
			`{"f:metadata":{"f:annotations":{"f:cni.projectcalico.org/containerID":{},"f:cni.projectcalico.org/podIP":{}}}}`),
		manager("kube-controller-manager", "", pod.CreationTimestamp, controllerFields(pod)),
		manager("kubelet", "status", *pod.Status.StartTime, kubeletFields(pod)),
	}
}

func manager(name, subresource string, at metav1.Time, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager: name, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &at,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields), Subresource: subresource,
	}
}

func controllerFields(pod *corev1.Pod) string {
	var b strings.Builder
	b.WriteString(`{"f:metadata":{"f:annotations":{".":{},"f:prometheus.io/port":{},"f:prometheus.io/scrape":{}},"f:generateName":{},"f:labels":{".":{}`)
	for _, label := range []string{"app.kubernetes.io/name", "app.kubernetes.io/part-of", "pod-template-hash", "tier"} {
		fmt.Fprintf(&b, `,"f:%s":{}`, label)
	}
	fmt.Fprintf(&b, `},"f:ownerReferences":{".":{},"k:{\"uid\":\"%s\"}":{}}},"f:spec":{"f:containers":{`, pod.OwnerReferences[0].UID)
	for i, c := range pod.Spec.Containers {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"k:{\"name\":\"%s\"}":{".":{},"f:args":{},"f:command":{},"f:env":{".":{}`, c.Name)
		for _, e := range c.Env {
			fmt.Fprintf(&b, `,"k:{\"name\":\"%s\"}":{".":{},"f:name":{},`, e.Name)
			if e.ValueFrom != nil {
				b.WriteString(`"f:valueFrom":{".":{},"f:secretKeyRef":{}}}`)
			} else {
				b.WriteString(`"f:value":{}}`)
			}
		}
		b.WriteString(`},"f:image":{},"f:imagePullPolicy":{},"f:livenessProbe":{".":{},"f:failureThreshold":{},"f:httpGet":{".":{},"f:path":{},"f:port":{},"f:scheme":{}},` +
			`"f:periodSeconds":{},"f:successThreshold":{},"f:timeoutSeconds":{}},"f:name":{},"f:ports":{".":{},"k:{\"containerPort\":8080,\"protocol\":\"TCP\"}":` +
			`{".":{},"f:containerPort":{},"f:name":{},"f:protocol":{}}},"f:resources":{".":{},"f:limits":{".":{},"f:memory":{}},"f:requests":{".":{},"f:cpu":{},"f:memory":{}}},` +
			`"f:terminationMessagePath":{},"f:terminationMessagePolicy":{},"f:volumeMounts":{".":{},"k:{\"mountPath\":\"/mnt/config\"}":{".":{},"f:mountPath":{},"f:name":{}}}}`)
	}
	b.WriteString(`},"f:dnsPolicy":{},"f:enableServiceLinks":{},"f:restartPolicy":{},"f:schedulerName":{},"f:securityContext":{".":{},"f:fsGroup":{}},` +
		`"f:serviceAccount":{},"f:serviceAccountName":{},"f:terminationGracePeriodSeconds":{},"f:volumes":{".":{},"k:{\"name\":\"config\"}":{".":{},"f:configMap":` +
		`{".":{},"f:defaultMode":{},"f:name":{}},"f:name":{}},"k:{\"name\":\"scratch\"}":{".":{},"f:emptyDir":{},"f:name":{}}}}}`)
	return b.String()
}

func kubeletFields(pod *corev1.Pod) string {
	var b strings.Builder
	b.WriteString(`{"f:status":{"f:conditions":{`)
	for i, c := range pod.Status.Conditions[:4] {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"k:{\"type\":\"%s\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}}`, c.Type)
	}
	fmt.Fprintf(&b, `},"f:containerStatuses":{},"f:hostIP":{},"f:hostIPs":{},"f:phase":{},"f:podIP":{},"f:podIPs":{".":{},"k:{\"ip\":\"%s\"}":{".":{},"f:ip":{}}},"f:startTime":{}}}`, pod.Status.PodIP)
	return b.String()
}
