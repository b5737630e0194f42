// SPDX-License-Identifier: Apache-2.0

// Package fakekube simulates a kube-apiserver for tests of aggregated API servers: authentication,
// authorization, and the resources watched by its informers.
package fakekube

import (
	"encoding/json"
	"net/http"
	"path"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// informed maps the resources watched by an aggregated server to their kinds.
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

// Cluster is a simulated kube-apiserver. It accepts the tokens alice and bob.
type Cluster struct {
	// ClientCA is the PEM certificate authority of clients and the front proxy.
	ClientCA string
	// Allows authorizes requests. Nil allows alice everything and others nothing.
	Allows func(authorizationv1.SubjectAccessReviewSpec) bool
	// Namespaces are the existing namespaces. Nil means lab.
	Namespaces []string
}

// ServeHTTP implements http.Handler.
func (c Cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
		if c.Allows != nil {
			review.Status.Allowed = c.Allows(review.Spec)
		}
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

// authentication is the ConfigMap with the trusted certificates.
const authentication = "extension-apiserver-authentication"

func (c Cluster) configMap() corev1.ConfigMap {
	return corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: authentication, Namespace: "kube-system", ResourceVersion: "1"},
		Data: map[string]string{
			"client-ca-file":                     c.ClientCA,
			"requestheader-client-ca-file":       c.ClientCA,
			"requestheader-allowed-names":        `["front-proxy"]`,
			"requestheader-username-headers":     `["X-Remote-User"]`,
			"requestheader-group-headers":        `["X-Remote-Group"]`,
			"requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
		},
	}
}

func (c Cluster) initial(r *http.Request, resource string) []any {
	switch resource {
	case "namespaces":
		if c.Namespaces == nil {
			return []any{c.object(r, resource, "lab")}
		}
		var all []any
		for _, name := range c.Namespaces {
			all = append(all, c.object(r, resource, name))
		}
		return all
	case "configmaps":
		return []any{c.configMap()}
	default:
		return []any{}
	}
}

func (c Cluster) watch(w http.ResponseWriter, r *http.Request, resource string) {
	for _, object := range c.initial(r, resource) {
		encode(w, map[string]any{"type": "ADDED", "object": object})
	}
	end := c.object(r, resource, "")
	end["metadata"].(map[string]any)["annotations"] = map[string]any{metav1.InitialEventsAnnotationKey: "true"}
	encode(w, map[string]any{"type": "BOOKMARK", "object": end})
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

func (c Cluster) object(r *http.Request, resource, name string) map[string]any {
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

// WriteKubeconfig writes a kubeconfig for the cluster at url. An empty token means no credentials.
func WriteKubeconfig(name, url, token string) error {
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"kube": {Server: url}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"user": {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{"kube": {Cluster: "kube", AuthInfo: "user"}},
		CurrentContext: "kube",
	}, name)
}
