// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// markWithoutProtobuf records the resources of a group whose objects protobuf can't encode.
func (i *installation) markWithoutProtobuf(group *genericapiserver.APIGroupInfo) {
	for _, gv := range group.PrioritizedVersions {
		for name, storage := range group.VersionedResourcesStorageMap[gv.Version] {
			kinds, _, err := group.Scheme.ObjectKinds(storage.New())
			if _, connects := storage.(rest.Connecter); connects || err != nil {
				continue // it encodes its responses itself
			}
			served, err := group.Scheme.New(gv.WithKind(kinds[0].Kind))
			if _, encodes := served.(interface{ Marshal() ([]byte, error) }); err == nil && !encodes {
				i.withoutProtobuf.Store(gv.WithResource(name), struct{}{})
			}
		}
	}
}

// withoutProtobufOfObjects keeps the server from choosing protobuf for these resources, which
// it would regret once it has created or deleted. Metadata has protobuf: of two parameters
// "as" the last one counts, and the server passes over a clause with an unknown one.
func (i *installation) withoutProtobufOfObjects(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const protobuf = runtime.ContentTypeProtobuf
		accept := r.Header.Get("Accept")
		if info, ok := request.RequestInfoFrom(r.Context()); ok && strings.Contains(accept, protobuf) {
			name := strings.TrimSuffix(info.Resource+"/"+info.Subresource, "/")
			if _, without := i.withoutProtobuf.Load(schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: name}); without {
				r = r.Clone(r.Context())
				r.Header.Set("Accept", strings.ReplaceAll(accept, protobuf, protobuf+";as=Object"))
			}
		}
		api.ServeHTTP(w, r)
	})
}
