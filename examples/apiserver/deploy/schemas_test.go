// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The two types that are not in k8s.io/api, with the fields that a manifest of
// ours may have: those of kube-aggregator's apiregistration.k8s.io/v1, and of the
// Prometheus Operator's monitoring.coreos.com/v1.

// APIService is a version of an API that another server serves.
type APIService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              struct {
		Service struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
			Port      int32  `json:"port"`
		} `json:"service"`
		Group                string `json:"group"`
		Version              string `json:"version"`
		CABundle             []byte `json:"caBundle"`
		GroupPriorityMinimum int32  `json:"groupPriorityMinimum"`
		VersionPriority      int32  `json:"versionPriority"`
	} `json:"spec"`
}

// DeepCopyObject implements runtime.Object. No test writes to an object.
func (s *APIService) DeepCopyObject() runtime.Object { return s }

// ServiceMonitor says how Prometheus scrapes the endpoints of a Service.
type ServiceMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              struct {
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port          string `json:"port"`
			Scheme        string `json:"scheme"`
			Path          string `json:"path"`
			Interval      string `json:"interval"`
			Authorization struct {
				Type        string  `json:"type"`
				Credentials nameKey `json:"credentials"`
			} `json:"authorization"`
			TLSConfig struct {
				ServerName string `json:"serverName"`
				CA         struct {
					ConfigMap nameKey `json:"configMap"`
				} `json:"ca"`
			} `json:"tlsConfig"`
		} `json:"endpoints"`
	} `json:"spec"`
}

// nameKey is a key of a Secret or a ConfigMap.
type nameKey struct {
	Name string `json:"name"`
	Key  string `json:"key"`
}

// DeepCopyObject implements runtime.Object. No test writes to an object.
func (m *ServiceMonitor) DeepCopyObject() runtime.Object { return m }
