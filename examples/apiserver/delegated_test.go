// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"

	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// informed maps each resource that an aggregated server watches in a cluster to its
// kind.
var informed = map[string]string{
	"namespaces":                        "Namespace",
	"configmaps":                        "ConfigMap",
	"flowschemas":                       "FlowSchema",
	"prioritylevelconfigurations":       "PriorityLevelConfiguration",
	"mutatingwebhookconfigurations":     "MutatingWebhookConfiguration",
	"validatingwebhookconfigurations":   "ValidatingWebhookConfiguration",
	"mutatingadmissionpolicies":         "MutatingAdmissionPolicy",
	"mutatingadmissionpolicybindings":   "MutatingAdmissionPolicyBinding",
	"validatingadmissionpolicies":       "ValidatingAdmissionPolicy",
	"validatingadmissionpolicybindings": "ValidatingAdmissionPolicyBinding",
}

// cluster stands for the kube-apiserver that an aggregated server asks: it knows the
// tokens alice and bob, lets alice do everything, and has one namespace, lab.
type cluster struct {
	clientCA string
}

func (c cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	resource := path.Base(r.URL.Path)
	switch {
	case resource == "tokenreviews":
		var review authenticationv1.TokenReview
		decode(r, &review)
		review.Status.Authenticated = review.Spec.Token == "alice" || review.Spec.Token == "bob"
		review.Status.User.Username = review.Spec.Token
		encode(w, review)
	case resource == "subjectaccessreviews":
		var review authorizationv1.SubjectAccessReview
		decode(r, &review)
		review.Status.Allowed = review.Spec.User == "alice"
		encode(w, review)
	case resource == authentication:
		encode(w, c.configMap())
	case informed[resource] != "" && r.URL.Query().Get("watch") != "":
		c.watch(w, r, resource)
	case informed[resource] != "":
		list := c.object(r, resource, "")
		list["kind"] = informed[resource] + "List"
		list["items"] = c.initial(r, resource)
		encode(w, list)
	default:
		http.NotFound(w, r)
	}
}

// authentication is the ConfigMap that says which certificates to trust.
const authentication = "extension-apiserver-authentication"

func (c cluster) configMap() corev1.ConfigMap {
	return corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: authentication, Namespace: "kube-system", ResourceVersion: "1"},
		Data: map[string]string{
			"client-ca-file":                     c.clientCA,
			"requestheader-client-ca-file":       c.clientCA,
			"requestheader-allowed-names":        `["front-proxy"]`,
			"requestheader-username-headers":     `["X-Remote-User"]`,
			"requestheader-group-headers":        `["X-Remote-Group"]`,
			"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
		},
	}
}

// initial returns what there is of a resource.
func (c cluster) initial(r *http.Request, resource string) []any {
	switch resource {
	case "namespaces":
		return []any{c.object(r, resource, "lab")}
	case "configmaps":
		return []any{c.configMap()}
	default:
		return []any{}
	}
}

// watch streams what there is, and then says nothing more.
func (c cluster) watch(w http.ResponseWriter, r *http.Request, resource string) {
	for _, object := range c.initial(r, resource) {
		encode(w, map[string]any{"type": "ADDED", "object": object})
	}
	end := c.object(r, resource, "")
	end["metadata"].(map[string]any)["annotations"] = map[string]any{metav1.InitialEventsAnnotationKey: "true"}
	encode(w, map[string]any{"type": "BOOKMARK", "object": end})
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

func (c cluster) object(r *http.Request, resource, name string) map[string]any {
	version := "v1"
	if after, ok := strings.CutPrefix(r.URL.Path, "/apis/"); ok {
		version = strings.TrimSuffix(after, "/"+resource)
	}
	return map[string]any{
		"apiVersion": version,
		"kind":       informed[resource],
		"metadata":   map[string]any{"name": name, "resourceVersion": "1"},
	}
}

func decode(r *http.Request, into any) {
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		panic(err)
	}
}

func encode(w http.ResponseWriter, object any) {
	if err := json.NewEncoder(w).Encode(object); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// TestAggregated runs the server as a cluster would: with an etcd of its own, and
// with a kube-apiserver that says who may do what.
func TestAggregated(t *testing.T) {
	dir := t.TempDir()
	etcd, err := embedded.Start(context.Background(), embedded.Config{Dir: filepath.Join(dir, "etcd"), UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	ca, _, err := certutil.GenerateSelfSignedCertKey("front-proxy", nil, nil)
	require.NoError(t, err)
	kube := httptest.NewServer(cluster{clientCA: string(ca)})
	t.Cleanup(func() {
		kube.CloseClientConnections()
		kube.Close()
	})
	kubeconfig := filepath.Join(dir, "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"kube": {Server: kube.URL}},
		Contexts:       map[string]*clientcmdapi.Context{"kube": {Cluster: "kube"}},
		CurrentContext: "kube",
	}, kubeconfig))

	announcement, _ := launch(t, "--etcd-servers="+strings.Join(etcd.Endpoints(), ","),
		"--bind-address=127.0.0.1", "--secure-port="+port(t), "--cert-dir="+filepath.Join(dir, "certs"),
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)
	url := strings.TrimSpace(strings.TrimPrefix(announcement, "Serving fleet.example.com on "))
	as := func(token string) *rest.Config {
		return &rest.Config{Host: url, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "certs", "apiserver.crt")}}
	}

	code, body := request(t, as(""), http.MethodGet, "/readyz", "")
	require.Equal(t, http.StatusOK, code, body)
	code, _ = request(t, as("eve"), http.MethodGet, devices, "")
	require.Equal(t, http.StatusUnauthorized, code)
	code, _ = request(t, as("bob"), http.MethodGet, devices, "")
	require.Equal(t, http.StatusForbidden, code)
	code, body = request(t, as("alice"), http.MethodPost, devices, gadget)
	require.Equal(t, http.StatusCreated, code, body)
	code, body = request(t, as("alice"), http.MethodGet, devices, "")
	require.Equal(t, http.StatusOK, code, body)
	require.Contains(t, body, `"name":"a"`)
	// The admission plugins of an aggregated server are on.
	code, body = request(t, as("alice"), http.MethodPost, strings.Replace(devices, "lab", "nowhere", 1), gadget)
	require.Equal(t, http.StatusNotFound, code, body)
}

// port returns one that was free a moment ago.
func port(t *testing.T) string {
	t.Helper()
	address := closedPort(t)
	return address[strings.LastIndex(address, ":")+1:]
}
