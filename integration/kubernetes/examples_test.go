// SPDX-License-Identifier: Apache-2.0

//go:build unix

package kubernetes

import (
	"fmt"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// endpoints is what controllers would write for a Service whose pods are ready. They
// would do so for Services with a selector.
const endpoints = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-1, namespace: %[2]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
endpoints: [{addresses: [%[3]q], conditions: {ready: true}}]
ports: [{name: https, port: %[4]d, protocol: TCP}]
`

// serviceMonitors are known where the Prometheus Operator is installed.
const serviceMonitors = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: servicemonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: ServiceMonitor, plural: servicemonitors, singular: servicemonitor}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}
`

// TestInACluster runs both examples as parts of one cluster, whose own kube-apiserver
// is on either cache.
func TestInACluster(t *testing.T) {
	for _, on := range []string{ours, shipped} {
		t.Run(on, func(t *testing.T) {
			c := startCluster(t, on)
			c.run(t, kubernetes, "kube-controller-manager", "--kubeconfig="+c.kubeconfig, "--controllers=namespace-controller", "--leader-elect=false", "--secure-port=0")
			t.Run("caches", func(t *testing.T) { testCaches(t, c, on) })
			t.Run("deploy", func(t *testing.T) { testDeploy(t, c) })
			t.Run("minimal", func(t *testing.T) { testMinimal(t, c) })
		})
	}
}

func (c *cluster) apply(t *testing.T, manifest string) {
	t.Helper()
	c.sh(t, "kubectl apply --validate=strict -f - <<'EOF'\n"+manifest+"EOF")
}

// namespacesEnd deletes an empty namespace and one with an object. They stay if an aggregated
// server can't answer the namespace controller, which accepts protobuf as well as JSON.
func (c *cluster) namespacesEnd(t *testing.T, object string) {
	t.Helper()
	c.sh(t, "kubectl create namespace empty && kubectl create namespace full")
	c.apply(t, object)
	c.sh(t, "kubectl delete namespace empty full --timeout="+patience.String())
}

// testDeploy applies the manifests of examples/apiserver/deploy as its page says, all
// of them, and runs the server with the rights of its ServiceAccount.
func testDeploy(t *testing.T, c *cluster) {
	deploy, err := filepath.Abs(root + "/examples/apiserver/deploy")
	require.NoError(t, err)
	env := "DEPLOY=" + deploy
	c.apply(t, serviceMonitors)
	c.sh(t, "kubectl wait --for=condition=Established crd/servicemonitors.monitoring.coreos.com --timeout=3m")
	c.sh(t, `kubectl apply --validate=strict -f "$DEPLOY/namespace.yaml"
		kubectl -n fleet-system create secret generic fleet-etcd-client --from-literal=ca.crt= --from-literal=tls.crt= --from-literal=tls.key=
		kubectl apply --validate=strict -f "$DEPLOY/"
		"$DEPLOY/tls.sh"
		kubectl apply --validate=strict -f "$DEPLOY/monitoring/"`, env)
	all := c.sh(t, "kubectl -n fleet-system get deployment,service,poddisruptionbudget,networkpolicy,serviceaccount,servicemonitor,secret,configmap -o name")
	for _, want := range []string{
		"deployment.apps/fleet-apiserver", "service/fleet-apiserver", "poddisruptionbudget.policy/fleet-apiserver", "networkpolicy.networking.k8s.io/fleet-apiserver",
		"serviceaccount/fleet-apiserver", "serviceaccount/fleet-metrics", "servicemonitor.monitoring.coreos.com/fleet-apiserver",
		"secret/fleet-apiserver-tls", "secret/fleet-metrics-token", "configmap/fleet-apiserver-ca",
	} {
		require.Contains(t, all, want+"\n")
	}

	// A pod has the Secret as files and the token of its ServiceAccount: so has the process.
	const mount = `for f in crt key; do kubectl -n fleet-system get secret fleet-apiserver-tls -o "jsonpath={.data.tls\.$f}" | base64 -d > new; mv new "fleet.$f"; done`
	c.sh(t, mount)
	kubeconfig := c.as(t, "fleet-system", "fleet-apiserver")
	port := freePort(t, c.address)
	server := c.run(t, fleet, "--bind-address="+c.address, "--secure-port="+strconv.Itoa(port),
		"--tls-cert-file=fleet.crt", "--tls-private-key-file=fleet.key", "--etcd-servers="+c.etcd[0], "--etcd-prefix=/fleet",
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)
	c.apply(t, fmt.Sprintf(endpoints, "fleet-apiserver", "fleet-system", c.address, port))
	c.sh(t, "kubectl wait --for=condition=Available apiservice/v1.fleet.example.com apiservice/v1beta1.fleet.example.com --timeout=3m")

	// The page's objects, through kube-apiserver, and a watch.
	devices, err := filepath.Abs(root + "/examples/apiserver/devices.yaml")
	require.NoError(t, err)
	c.sh(t, "kubectl create namespace lab && kubectl apply --validate=strict -f "+devices+" -l tier=test")
	c.eventually(t, "kubectl get devices -A", "server-01")
	require.Contains(t, c.sh(t, "kubectl -n lab get devices.v1beta1.fleet.example.com -o name"), "server-01")
	watching := c.sh(t, `kubectl -n lab get devices -w -o name > watched & watch=$!
		trap 'kill $watch' EXIT
		until grep -q server-01 watched; do kubectl get --raw /livez > /dev/null; done
		kubectl -n lab label device server-01 seen=yes
		until [ "$(wc -l < watched)" -ge 2 ]; do kubectl get --raw /livez > /dev/null; done
		cat watched`)
	require.Contains(t, watching, "device.fleet.example.com/server-01\ndevice.fleet.example.com/server-01\n")

	testAccess(t, c, port)

	// The second run of tls.sh interrupts nobody: neither before the server has the
	// new certificate nor afterwards.
	before := c.sh(t, "cat fleet.crt")
	c.sh(t, `"$DEPLOY/tls.sh"`, env)
	for range 3 {
		c.sh(t, "kubectl -n lab get devices")
	}
	c.sh(t, mount)
	require.NotEqual(t, before, c.sh(t, "cat fleet.crt"))
	c.eventually(t, fmt.Sprintf("openssl s_client -connect %s:%d < /dev/null 2> /dev/null | openssl x509", c.address, port), c.sh(t, "openssl x509 -in fleet.crt"))
	c.sh(t, "kubectl -n lab label device server-01 seen=again --overwrite")
	require.Equal(t, "True", c.sh(t, "kubectl get apiservice v1.fleet.example.com -o jsonpath='{.status.conditions[?(@.type==\"Available\")].status}'"))

	c.namespacesEnd(t, "{apiVersion: fleet.example.com/v1, kind: Device, metadata: {name: d, namespace: full}, spec: {zone: z, owner: o, model: m}}\n")
	require.NotContains(t, server.log.String(), "forbidden", "the rights of rbac.yaml don't suffice")
	server.interrupt(t)
	c.sh(t, "kubectl delete apiservice v1.fleet.example.com v1beta1.fleet.example.com") // no namespace ends while one is away
}

// testAccess looks at who may do what, through kube-apiserver and past it.
func testAccess(t *testing.T, c *cluster, port int) {
	c.sh(t, "kubectl -n lab create serviceaccount viewer && kubectl -n lab create rolebinding viewer --clusterrole=fleet-devices-view --serviceaccount=lab:viewer")
	viewer, metrics := "KUBECONFIG="+c.as(t, "lab", "viewer"), "KUBECONFIG="+c.as(t, "fleet-system", "fleet-metrics")
	past := fmt.Sprintf(" --server=https://%s:%d --tls-server-name=fleet-apiserver.fleet-system.svc --certificate-authority=fleet-ca.crt", c.address, port)
	c.sh(t, "kubectl -n fleet-system get configmap fleet-apiserver-ca -o 'jsonpath={.data.ca\\.crt}' > fleet-ca.crt")
	for _, way := range []string{"", past} {
		c.eventually(t, "kubectl -n lab get devices"+way, "server-01", viewer)
		for _, forbidden := range []string{"-n lab delete devices --all", "-n default get devices", "-n lab auth can-i create devices"} {
			out, err := c.try("kubectl "+forbidden+way, viewer)
			require.Error(t, err, out)
		}
	}
	c.eventually(t, "kubectl get --raw /metrics"+past, `watchcache_objects{group="fleet.example.com",resource="devices"} 1`, metrics)
	for _, nobody := range []string{"kubectl get --raw /metrics" + past, "kubectl get --raw /debug/watchcache" + past} {
		out, err := c.try(nobody, viewer)
		require.Error(t, err)
		require.Contains(t, out, "Forbidden")
	}
}

// minimalManifests are what a server of one type needs, beside a Deployment.
const minimalManifests = `
apiVersion: v1
kind: Namespace
metadata: {name: widgets}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: widgets, namespace: widgets}
---
apiVersion: v1
kind: Service
metadata: {name: widgets, namespace: widgets}
spec:
  ports: [{name: https, port: 443}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.widgets.example.com}
spec:
  group: widgets.example.com
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 20
  insecureSkipTLSVerify: true
  service: {name: widgets, namespace: widgets}
`

// testMinimal runs examples/minimal with the flags of a cluster, and with the roles
// that the manifests of the other example have.
func testMinimal(t *testing.T, c *cluster) {
	c.apply(t, minimalManifests)
	c.sh(t, `kubectl create clusterrolebinding widgets-delegator --clusterrole=system:auth-delegator --serviceaccount=widgets:widgets
		kubectl create clusterrolebinding widgets --clusterrole=fleet-apiserver --serviceaccount=widgets:widgets
		kubectl -n kube-system create rolebinding widgets --role=extension-apiserver-authentication-reader --serviceaccount=widgets:widgets`)
	kubeconfig := c.as(t, "widgets", "widgets")
	port := freePort(t, c.address)
	server := c.run(t, widgets, "--bind-address="+c.address, "--secure-port="+strconv.Itoa(port), "--cert-dir="+t.TempDir(),
		"--etcd-servers="+c.etcd[0], "--etcd-prefix=/widgets",
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)
	c.apply(t, fmt.Sprintf(endpoints, "widgets", "widgets", c.address, port))
	c.sh(t, "kubectl wait --for=condition=Available apiservice/v1.widgets.example.com --timeout=3m")
	manifest, err := filepath.Abs(root + "/examples/minimal/widgets.yaml")
	require.NoError(t, err)
	c.sh(t, "kubectl apply --validate=strict -f "+manifest)
	require.Contains(t, c.sh(t, "kubectl get widgets --field-selector spec.color=red -o name"), "left")
	out, err := c.try(`kubectl patch widget left --type=merge -p '{"spec":{"size":-1}}'`)
	require.Error(t, err)
	require.Contains(t, out, "must not be negative")

	c.sh(t, "kubectl -n widgets create serviceaccount nobody")
	out, err = c.try("kubectl get widgets", "KUBECONFIG="+c.as(t, "widgets", "nobody"))
	require.Error(t, err)
	require.Contains(t, out, "Forbidden")
	c.namespacesEnd(t, "{apiVersion: widgets.example.com/v1, kind: Widget, metadata: {name: w, namespace: full}, spec: {color: red, size: 1}}\n")
	require.NotContains(t, server.log.String(), "forbidden")
	server.interrupt(t)
}
