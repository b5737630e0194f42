// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestNodes lives through six minutes of nodes in virtual time: leases, statuses, a pod
// that comes and goes, and a server that fails in between.
func TestNodes(t *testing.T) {
	// Watches of the fake client know no field selectors: only one node can have its own.
	for watches, count := range map[Watches]int{EachNode: 1, Shared: 3} {
		t.Run(string(watches), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testNodes(t, watches, count) })
		})
	}
}

func testNodes(t *testing.T, watches Watches, count int) {
	client := fake.NewClientset()
	var broken atomic.Bool
	client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		fails := action.GetVerb() == "delete" || action.GetResource().Resource == "leases"
		return fails && broken.Load(), nil, errors.New("the server is broken")
	})
	last := Name(count - 1)
	ctx, cancel := context.WithCancel(t.Context())
	var counts Counts
	registered, ended := make(chan struct{}), make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		run(ctx, Config{Count: count, Watches: watches}, []kubernetes.Interface{client}, &counts, func() { close(registered) })
	}()
	<-registered
	time.Sleep(renewEvery)
	synctest.Wait()
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, nodes.Items, count)
	renewed := func() time.Time {
		lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, last, metav1.GetOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 40, *lease.Spec.LeaseDurationSeconds)
		return lease.Spec.RenewTime.Time
	}
	first := renewed()
	time.Sleep(renewEvery)
	synctest.Wait()
	require.Equal(t, renewEvery, renewed().Sub(first))

	pod, err := client.CoreV1().Pods("a").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Status: corev1.PodStatus{Phase: corev1.PodPending},
		Spec: corev1.PodSpec{NodeName: last, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	synctest.Wait()
	pod, err = client.CoreV1().Pods("a").Get(ctx, pod.Name, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, corev1.PodRunning, pod.Status.Phase)
	require.True(t, pod.Status.ContainerStatuses[0].Ready)
	require.Equal(t, address(count-1), pod.Status.HostIP)
	require.EqualValues(t, 1, counts.Ready.Load())

	// The pod is to end while the server is broken.
	broken.Store(true)
	now := metav1.Now()
	pod.DeletionTimestamp = &now
	pod, err = client.CoreV1().Pods("a").Update(ctx, pod, metav1.UpdateOptions{})
	require.NoError(t, err)
	synctest.Wait()
	require.Zero(t, counts.Deleted.Load())
	time.Sleep(2 * lastRetry)
	synctest.Wait()
	require.Positive(t, counts.Failed.Load())
	broken.Store(false)
	time.Sleep(2 * lastRetry)
	synctest.Wait()
	_, err = client.CoreV1().Pods("a").Get(ctx, pod.Name, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	require.EqualValues(t, 1, counts.Deleted.Load())

	time.Sleep(reportEvery)
	synctest.Wait()
	node, err := client.CoreV1().Nodes().Get(ctx, last, metav1.GetOptions{})
	require.NoError(t, err)
	require.True(t, node.Status.Conditions[0].LastHeartbeatTime.After(nodes.Items[count-1].Status.Conditions[0].LastHeartbeatTime.Time), "no status was reported")
	cancel()
	<-ended
}
