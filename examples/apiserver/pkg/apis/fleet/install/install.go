// SPDX-License-Identifier: Apache-2.0

// Package install registers every version of the fleet.example.com API.
package install

import (
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	v1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1beta1"
)

// AddToScheme registers the internal and served versions, and prefers v1.
func AddToScheme(scheme *runtime.Scheme) error {
	builder := runtime.SchemeBuilder{fleet.AddToScheme, v1.AddToScheme, v1beta1.AddToScheme}
	if err := builder.AddToScheme(scheme); err != nil {
		return err
	}
	return scheme.SetVersionPriority(v1.SchemeGroupVersion, v1beta1.SchemeGroupVersion)
}
