// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	v1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1beta1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/server"
)

// podOf returns the Deployment's Pod and its only container.
func podOf(t *testing.T) (appsv1.Deployment, corev1.Container) {
	t.Helper()
	deployment := get[*appsv1.Deployment](t, manifests(t), "Deployment/"+app)
	require.Len(t, deployment.Spec.Template.Spec.Containers, 1)
	return *deployment, deployment.Spec.Template.Spec.Containers[0]
}

// optionsOf returns what the flags of the container mean.
func optionsOf(t *testing.T, container corev1.Container) *server.Options {
	t.Helper()
	options := server.NewOptions()
	for _, topic := range options.Flags().Order {
		set := options.Flags().FlagSets[topic]
		for _, arg := range container.Args {
			name, value, given := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
			require.True(t, given, arg)
			if set.Lookup(name) != nil {
				require.NoError(t, set.Set(name, value), arg)
			}
		}
	}
	options.Complete()
	require.NoError(t, options.Validate())
	return options
}

// The server has every flag that the Deployment gives it, takes their values
// together, and listens on the port that the container declares. The files that
// flags name are mounted.
func TestFlags(t *testing.T) {
	deployment, container := podOf(t)
	require.NoError(t, server.NewCommand().ParseFlags(container.Args))
	options := optionsOf(t, container)
	require.False(t, options.Standalone)
	require.Len(t, container.Ports, 1)
	require.Equal(t, int(container.Ports[0].ContainerPort), options.Recommended.SecureServing.BindPort)

	var mounted []string
	for _, mount := range container.VolumeMounts {
		mounted = append(mounted, mount.MountPath)
		require.True(t, mount.ReadOnly, mount.Name)
		require.True(t, slices.ContainsFunc(deployment.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Name == mount.Name && v.Secret != nil
		}), "no volume %s", mount.Name)
	}
	for _, arg := range container.Args {
		if _, file, ok := strings.Cut(arg, "=/"); ok {
			require.Contains(t, mounted, path.Dir("/"+file), arg)
		}
	}
}

// A request finds its way: APIService, Service, Pod, port. Probes and Prometheus
// take the same one.
func TestWay(t *testing.T) {
	objects := manifests(t)
	deployment, container := podOf(t)
	port := container.Ports[0]
	service := get[*corev1.Service](t, objects, "Service/"+app)
	require.True(t, selects(t, service.Spec.Selector, deployment.Spec.Template.Labels))
	require.Len(t, service.Spec.Ports, 1)
	require.Equal(t, port.Name, service.Spec.Ports[0].TargetPort.String())
	for _, version := range []string{v1.SchemeGroupVersion.Version, v1beta1.SchemeGroupVersion.Version} {
		api := get[*APIService](t, objects, "APIService/"+version+"."+fleet.GroupName)
		require.Equal(t, fleet.GroupName, api.Spec.Group)
		require.Equal(t, version, api.Spec.Version)
		require.Equal(t, service.Name, api.Spec.Service.Name)
		require.Equal(t, service.Namespace, api.Spec.Service.Namespace)
		if api.Spec.Service.Port == 0 {
			api.Spec.Service.Port = 443 // the default
		}
		require.Equal(t, service.Spec.Ports[0].Port, api.Spec.Service.Port)
		require.Empty(t, api.Spec.CABundle, "tls.sh sets it; applying the manifest again must not take it away")
	}
	for name, probe := range map[string]*corev1.Probe{"/livez": container.LivenessProbe, "/readyz": container.ReadinessProbe} {
		require.Equal(t, name, probe.HTTPGet.Path)
		require.Equal(t, port.Name, probe.HTTPGet.Port.String())
		require.Equal(t, corev1.URISchemeHTTPS, probe.HTTPGet.Scheme)
	}
	monitor := get[*ServiceMonitor](t, objects, "ServiceMonitor/"+app)
	require.True(t, selects(t, monitor.Spec.Selector.MatchLabels, service.Labels))
	require.Len(t, monitor.Spec.Endpoints, 1)
	endpoint := monitor.Spec.Endpoints[0]
	require.Equal(t, service.Spec.Ports[0].Name, endpoint.Port)
	require.Equal(t, "https", endpoint.Scheme)
	require.Equal(t, "/metrics", endpoint.Path)
	require.Equal(t, service.Name+"."+service.Namespace+".svc", endpoint.TLSConfig.ServerName)
	require.Equal(t, nameKey{app + "-ca", "ca.crt"}, endpoint.TLSConfig.CA.ConfigMap)
}

// The disruption budget, the spread and the network policy select the server's
// Pods. The policy lets in what the Service sends and out what flags name.
func TestPodsAreSelected(t *testing.T) {
	objects := manifests(t)
	deployment, container := podOf(t)
	pod := deployment.Spec.Template.Labels
	require.Equal(t, deployment.Spec.Selector.MatchLabels, pod)
	budget := get[*policyv1.PodDisruptionBudget](t, objects, "PodDisruptionBudget/"+app)
	require.True(t, selects(t, budget.Spec.Selector.MatchLabels, pod))
	require.Less(t, budget.Spec.MinAvailable.IntValue(), int(*deployment.Spec.Replicas), "no node could be drained")
	var spread []string
	for _, constraint := range deployment.Spec.Template.Spec.TopologySpreadConstraints {
		require.True(t, selects(t, constraint.LabelSelector.MatchLabels, pod))
		spread = append(spread, constraint.TopologyKey)
	}
	require.ElementsMatch(t, []string{corev1.LabelHostname, corev1.LabelTopologyZone}, spread)

	network := get[*networkingv1.NetworkPolicy](t, objects, "NetworkPolicy/"+app)
	require.True(t, selects(t, network.Spec.PodSelector.MatchLabels, pod))
	require.ElementsMatch(t, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}, network.Spec.PolicyTypes)
	require.Len(t, network.Spec.Ingress, 1)
	require.Len(t, network.Spec.Ingress[0].Ports, 1)
	require.Equal(t, container.Ports[0].Name, network.Spec.Ingress[0].Ports[0].Port.String())
	out := map[string]bool{}
	for _, rule := range network.Spec.Egress {
		for _, port := range rule.Ports {
			out[string(*port.Protocol)+" "+port.Port.String()] = true
		}
	}
	for _, needed := range []string{"UDP 53", "TCP 53", "TCP 443", "TCP 6443"} {
		require.True(t, out[needed], needed)
	}
	for _, arg := range container.Args {
		if servers, ok := strings.CutPrefix(arg, "--etcd-servers="); ok {
			for server := range strings.SplitSeq(servers, ",") {
				port := server[strings.LastIndex(server, ":")+1:]
				_, err := strconv.Atoi(port)
				require.NoError(t, err, arg)
				require.True(t, out["TCP "+port], arg)
			}
		}
	}
}

func selects(t *testing.T, selector, set map[string]string) bool {
	t.Helper()
	require.NotEmpty(t, selector)
	parsed, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchLabels: selector})
	require.NoError(t, err)
	return parsed.Matches(labels.Set(set))
}
