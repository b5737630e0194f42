// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// Prefix is the key prefix of all that the clauses write: a Pod's key is
// "/pods/NAMESPACE/NAME".
const Prefix = poddata.Prefix

// Resource returns what Pods are called.
func Resource() schema.GroupResource { return poddata.Resource }

// NewPod returns an empty Pod, an *example.Pod of
// k8s.io/apiserver/pkg/apis/example.
func NewPod() runtime.Object { return poddata.New() }

// NewPodList returns an empty *example.PodList.
func NewPodList() runtime.Object { return poddata.NewList() }

// Codec returns a codec for Pods that stores them as JSON.
func Codec() runtime.Codec { return poddata.JSONCodec() }

// Key returns a Pod's storage key.
func Key(pod runtime.Object) (string, error) { return poddata.Key(pod) }

// Attrs returns what selectors select Pods by: labels, and the fields
// metadata.name, metadata.namespace, spec.nodeName, spec.restartPolicy and
// status.phase.
func Attrs(pod runtime.Object) (labels.Set, fields.Set, error) { return poddata.Attrs(pod) }

// ForPods completes the storage configuration of a server to that of Pods, as
// a backend's RawStorage function takes it, together with NewPod, NewPodList
// and Prefix.
func ForPods(config storagebackend.Config) *storagebackend.ConfigForResource {
	config.Codec = Codec()
	return config.ForResource(Resource())
}
