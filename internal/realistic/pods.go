// SPDX-License-Identifier: Apache-2.0

package realistic

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
)

// Pods returns Pods of about the given size, in bytes of stored protobuf.
func Pods(bytes int) (Kind, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return Kind{}, err
	}
	wire := protobuf.NewSerializer(scheme, scheme)
	codec := serializer.NewCodecFactory(scheme).CodecForVersions(wire, wire, corev1.SchemeGroupVersion, corev1.SchemeGroupVersion)
	k := Kind{
		Name: fmt.Sprintf("%d-KB pod", bytes/1000), Resource: corev1.Resource("pods"), Codec: codec, Attrs: podAttrs,
		New: func() runtime.Object { return &corev1.Pod{} }, NewList: func() runtime.Object { return &corev1.PodList{} },
		Update: func(object runtime.Object, n int) { updatePod(object.(*corev1.Pod), n) },
	}
	shape := podShape{containers: max(1, bytes/4000)}
	for ; ; shape.env++ {
		k.Make = func(i int) runtime.Object { return makePod(i, shape) }
		encoded, err := k.Encode(0, 0)
		if err != nil || len(encoded) >= bytes {
			return k, err
		}
	}
}

type podShape struct {
	containers int
	// env is the number of variables per container.
	env int
}

func podAttrs(object runtime.Object) (labels.Set, fields.Set, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return nil, nil, fmt.Errorf("%T is no Pod", object)
	}
	return pod.Labels, fields.Set{
		"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "spec.nodeName": pod.Spec.NodeName,
		"spec.restartPolicy": string(pod.Spec.RestartPolicy), "spec.schedulerName": pod.Spec.SchedulerName,
		"spec.serviceAccountName": pod.Spec.ServiceAccountName, "status.phase": string(pod.Status.Phase),
		"status.podIP": pod.Status.PodIP, "status.nominatedNodeName": pod.Status.NominatedNodeName,
	}, nil
}

func makePod(i int, shape podShape) *corev1.Pod {
	yes, seconds := true, int64(300)
	owner := i / perOwner
	app := fmt.Sprintf("service-%03d", owner)
	hash := hex(uint64(owner), 10)
	created := stampOf(owner)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: app + "-" + hash + "-" + hex(uint64(i)+1<<32, 5), GenerateName: app + "-" + hash + "-",
			Namespace: fmt.Sprintf("team-%02d", i/perNamespace), UID: types.UID(uid(uint64(i) + 1<<33)), CreationTimestamp: created,
			Labels: map[string]string{
				"app.kubernetes.io/name": app, "app.kubernetes.io/part-of": "shop", "pod-template-hash": hash, "tier": "backend",
			},
			Annotations: map[string]string{
				"kubectl.kubernetes.io/restartedAt": "2023-11-14T22:13:20Z", "prometheus.io/scrape": "true", "prometheus.io/port": "8080",
				"cni.projectcalico.org/containerID": hex(uint64(i)+1<<34, 64), "cni.projectcalico.org/podIP": podIP(i) + "/32",
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: app + "-" + hash, UID: types.UID(uid(uint64(owner) + 1<<35)),
				Controller: &yes, BlockOwnerDeletion: &yes,
			}},
		},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst, ServiceAccountName: app, DeprecatedServiceAccount: app,
			NodeName: fmt.Sprintf("node-%04d", i*7%1000), SchedulerName: "default-scheduler", SecurityContext: &corev1.PodSecurityContext{FSGroup: new(int64(1000))},
			TerminationGracePeriodSeconds: new(int64(30)), EnableServiceLinks: &yes, Priority: new(int32(0)),
			PreemptionPolicy: new(corev1.PreemptLowerPriority),
			Tolerations: []corev1.Toleration{
				{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: &seconds},
				{Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: &seconds},
			},
			Volumes: podVolumes(app, i),
		},
	}
	for c := range shape.containers {
		pod.Spec.Containers = append(pod.Spec.Containers, container(app, c, shape.env, pod.Spec.Volumes))
	}
	setStatus(pod, i)
	pod.ManagedFields = podManagers(pod)
	return pod
}

func podIP(i int) string { return fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255) }

func podVolumes(app string, i int) []corev1.Volume {
	token := corev1.Volume{Name: "kube-api-access-" + hex(uint64(i)+1<<36, 5), VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: new(int32(420)), Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: new(int64(3607)), Path: "token"}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
				Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"},
			}}}},
		},
	}}}
	return []corev1.Volume{
		{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: app + "-config"}, DefaultMode: new(int32(420)),
		}}},
		{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		token,
	}
}

func container(app string, c, env int, volumes []corev1.Volume) corev1.Container {
	name := app
	if c > 0 {
		name = fmt.Sprintf("sidecar-%d", c)
	}
	probe := func(path string) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr8080, Scheme: "HTTP"}},
			PeriodSeconds: 10, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3,
		}
	}
	out := corev1.Container{
		Name: name, Image: "registry.example/shop/" + name + ":1.24.3", ImagePullPolicy: "IfNotPresent",
		Command: []string{"/bin/" + name}, Args: []string{"--listen=:8080", "--config=/etc/service/config.yaml"},
		TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: "File",
		Ports:         []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: "TCP"}},
		LivenessProbe: probe("/livez"), ReadinessProbe: probe("/readyz"),
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("128Mi")},
			Limits:   corev1.ResourceList{"memory": resource.MustParse("256Mi")},
		},
	}
	for e := range env {
		variable := corev1.EnvVar{Name: fmt.Sprintf("SETTING_%02d", e), Value: fmt.Sprintf("value-%s-%d", name, e)}
		if e%4 == 3 {
			variable = corev1.EnvVar{Name: fmt.Sprintf("SECRET_%02d", e), ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: app + "-secrets"}, Key: fmt.Sprintf("key-%02d", e),
			}}}
		}
		out.Env = append(out.Env, variable)
	}
	for _, volume := range volumes {
		mount := corev1.VolumeMount{Name: volume.Name, MountPath: "/mnt/" + volume.Name}
		if strings.HasPrefix(volume.Name, "kube-api-access-") {
			mount.ReadOnly, mount.MountPath = true, "/var/run/secrets/kubernetes.io/serviceaccount"
		}
		out.VolumeMounts = append(out.VolumeMounts, mount)
	}
	return out
}

func setStatus(pod *corev1.Pod, i int) {
	started := metav1.NewTime(pod.CreationTimestamp.Add(2e9))
	host := fmt.Sprintf("192.168.%d.%d", i*7%1000>>8, i*7%1000&255)
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: podIP(i), HostIP: host, StartTime: &started, QOSClass: corev1.PodQOSBurstable,
		PodIPs: []corev1.PodIP{{IP: podIP(i)}}, HostIPs: []corev1.HostIP{{IP: host}},
	}
	for _, typ := range []corev1.PodConditionType{"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: typ, Status: "True", LastTransitionTime: started})
	}
	for c, container := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Ready: true, Started: new(true), Image: container.Image,
			ImageID:     container.Image + "@sha256:" + hex(uint64(len(container.Image)), 64),
			ContainerID: "containerd://" + hex(uint64(i*16+c)+1<<37, 64),
			State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}},
		})
	}
}

// updatePod alternates a Pod's readiness, like a kubelet with a failing and succeeding probe.
func updatePod(pod *corev1.Pod, n int) {
	ready := n%2 == 0
	status, at := corev1.ConditionFalse, stampOf(100_000+n)
	if ready {
		status = corev1.ConditionTrue
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == "Ready" || c.Type == "ContainersReady" {
			c.Status, c.LastTransitionTime = status, at
		}
	}
	pod.Status.ContainerStatuses[0].Ready = ready
	pod.ManagedFields[len(pod.ManagedFields)-1].Time = &at
}
