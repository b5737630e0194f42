// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"encoding/json"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// register creates the node, or takes over one that is there, as a kubelet does that was
// started again.
func (n *node) register(ctx context.Context) error {
	_, err := n.client.CoreV1().Nodes().Create(ctx, n.object(), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return n.report(ctx)
	}
	return err
}

// zones is how many zones the nodes are spread over.
const zones = 3

func (n *node) object() *corev1.Node {
	resources := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("32"),
		corev1.ResourceMemory:           resource.MustParse("128Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("500Gi"),
		corev1.ResourcePods:             resource.MustParse("250"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.name,
			Labels: map[string]string{
				corev1.LabelHostname: n.name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
				corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", n.index%zones),
			},
		},
		Spec: corev1.NodeSpec{PodCIDR: fmt.Sprintf("100.%d.%d.0/24", 64+n.index>>8, n.index&255)},
		Status: corev1.NodeStatus{
			Capacity: resources, Allocatable: resources, Conditions: conditions(),
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address(n.index)}, {Type: corev1.NodeHostName, Address: n.name}},
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: n.name, SystemUUID: n.name, BootID: n.name, KernelVersion: "6.12.0", OSImage: "none",
				ContainerRuntimeVersion: "none://0", KubeletVersion: "v1.37.1", OperatingSystem: "linux", Architecture: "amd64",
			},
		},
	}
}

// address is that of a node, which nobody can reach.
func address(index int) string { return fmt.Sprintf("10.%d.%d.1", 128+index>>8, index&255) }

func conditions() []corev1.NodeCondition {
	now := metav1.Now()
	of := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: "a node without a machine", LastHeartbeatTime: now, LastTransitionTime: now}
	}
	return []corev1.NodeCondition{
		of(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory"),
		of(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure"),
		of(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID"),
		of(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady"),
	}
}

// report writes the conditions with the time of now.
func (n *node) report(ctx context.Context) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": conditions()}})
	if err != nil {
		return err
	}
	_, err = n.client.CoreV1().Nodes().Patch(ctx, n.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) { // somebody has deleted the node
		_, err = n.client.CoreV1().Nodes().Create(ctx, n.object(), metav1.CreateOptions{})
	}
	return err
}

// leaseHolder renews the lease of a node. It keeps the lease between renewals, as
// kubelets do, and reads it only after an error.
type leaseHolder struct {
	*node
	lease *coordinationv1.Lease
}

func (l *leaseHolder) renew(ctx context.Context) (err error) {
	leases := l.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now, seconds := metav1.NowMicro(), int32(leaseSeconds)
	if l.lease == nil {
		l.lease, err = leases.Get(ctx, l.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			l.lease, err = leases.Create(ctx, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: l.name},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: &l.name, LeaseDurationSeconds: &seconds, RenewTime: &now},
			}, metav1.CreateOptions{})
			return l.keep(l.lease, err)
		}
		if err != nil {
			return l.keep(nil, err)
		}
	}
	renewed := l.lease.DeepCopy()
	renewed.Spec.RenewTime, renewed.Spec.HolderIdentity, renewed.Spec.LeaseDurationSeconds = &now, &l.name, &seconds
	return l.keep(leases.Update(ctx, renewed, metav1.UpdateOptions{}))
}

func (l *leaseHolder) keep(lease *coordinationv1.Lease, err error) error {
	if l.lease = lease; err != nil {
		l.lease = nil
	}
	return err
}
