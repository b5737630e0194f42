// SPDX-License-Identifier: Apache-2.0

package device

import (
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	v1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1beta1"
)

// resetInEachVersion returns the set of dotted paths for each served version.
func resetInEachVersion(paths ...string) map[fieldpath.APIVersion]*fieldpath.Set {
	set := fieldpath.NewSet()
	for _, path := range paths {
		var parts []any
		for part := range strings.SplitSeq(path, ".") {
			parts = append(parts, part)
		}
		set.Insert(fieldpath.MakePathOrDie(parts...))
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(v1.SchemeGroupVersion.String()):      set,
		fieldpath.APIVersion(v1beta1.SchemeGroupVersion.String()): set,
	}
}
