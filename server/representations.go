// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"strings"
	"sync"

	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/apihelpers"

	"github.com/kube-watchcache/watchcache/internal/keptlists"
)

// servedGroup is one version of a group installed by InstallAPIGroup.
type servedGroup struct {
	serializer runtime.NegotiatedSerializer
	// scope is the server's rule by which the group's handlers accept media types.
	scope    *handlers.RequestScope
	storages map[string]rest.Storage // by resource
	// plain holds resources whose lists aren't a cache's.
	plain sync.Map
	// private holds resources whose watches a registry's Decorator or a filter reads.
	private sync.Map
}

// serve sets the group's serializer and records the group for withRepresentations, except for
// resources that this cache does not serve.
func (i *installation) serve(group *genericapiserver.APIGroupInfo) {
	scope := &handlers.RequestScope{
		MetaGroupVersion: *cmp.Or(group.MetaGroupVersion, &metav1.SchemeGroupVersion),
		TableConvertor:   rest.NewDefaultTableConvertor(schema.GroupResource{}), // only its presence matters
	}
	stock := group.NegotiatedSerializer
	for _, gv := range group.PrioritizedVersions {
		for name, storage := range group.VersionedResourcesStorageMap[gv.Version] {
			if lacksProtobuf(group.Scheme, gv, storage) {
				i.withoutProtobuf.Store(gv.WithResource(name), struct{}{})
			}
		}
		storages := maps.Clone(group.VersionedResourcesStorageMap[gv.Version])
		maps.DeleteFunc(storages, func(name string, _ rest.Storage) bool {
			resource, _, _ := strings.Cut(name, "/")
			return i.inShadow || !i.cached(gv.WithResource(resource).GroupResource())
		})
		if len(storages) > 0 {
			group.NegotiatedSerializer = i.lists.Serializer(stock)
			i.groups.Store(gv, &servedGroup{serializer: group.NegotiatedSerializer, scope: scope, storages: storages})
		}
	}
}

// lacksProtobuf reports whether the served objects of a storage have no protobuf encoding.
// Connecters encode their own responses.
func lacksProtobuf(scheme *runtime.Scheme, gv schema.GroupVersion, storage rest.Storage) bool {
	kinds, _, err := scheme.ObjectKinds(storage.New())
	if _, connects := storage.(rest.Connecter); connects || err != nil {
		return false
	}
	served, err := scheme.New(gv.WithKind(kinds[0].Kind))
	_, encodes := served.(interface{ Marshal() ([]byte, error) })
	return err == nil && !encodes
}

// withoutProtobufOfObjects prevents the server from choosing protobuf for such objects, which fails
// after they are created or deleted. Metadata stays available, because the last of two "as"
// parameters counts, and the server skips a clause with an unknown one.
func (i *installation) withoutProtobufOfObjects(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if accept := r.Header.Get("Accept"); ok && strings.Contains(accept, runtime.ContentTypeProtobuf) {
			name := strings.TrimSuffix(info.Resource+"/"+info.Subresource, "/")
			if _, lacks := i.withoutProtobuf.Load(schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: name}); lacks {
				r = r.Clone(r.Context())
				r.Header.Set("Accept", strings.ReplaceAll(accept, runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+";as=Object"))
			}
		}
		api.ServeHTTP(w, r)
	})
}

// servedBy returns the request info, group and storage of a GET with the verb, list or watch. The
// storage is nil unless InstallAPIGroup put the resource on this cache.
func (i *installation) servedBy(r *http.Request, verb string) (*request.RequestInfo, *servedGroup, rest.Storage) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || r.Method != http.MethodGet || !info.IsResourceRequest || info.Verb != verb || info.Subresource != "" {
		return nil, nil, nil
	}
	found, ok := i.groups.Load(schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion})
	if !ok {
		return nil, nil, nil
	}
	group := found.(*servedGroup)
	return info, group, group.storages[info.Resource]
}

// withRepresentations serves lists as Tables and as metadata from kept bytes.
//
// The server converts a list before it encodes it, with a serializer that we can't replace. So we
// forward a request for the list itself, in the same format, and the list's encoder writes the
// representation. The API's handler selects it by the Accept header only. The rewritten header does
// not change the format of errors.
func (i *installation) withRepresentations(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !i.serveRepresentation(api, w, r) {
			api.ServeHTTP(w, r)
		}
	})
}

// serveRepresentation returns false, with nothing written, if the server must handle the request.
func (i *installation) serveRepresentation(api http.Handler, w http.ResponseWriter, r *http.Request) bool {
	if !strings.Contains(r.Header.Get("Accept"), "as=") {
		return false
	}
	info, group, served := i.servedBy(r, "list")
	storage, ok := served.(listerWithTables)
	if !ok || audited(r.Context()) {
		return false
	}
	if _, plain := group.plain.Load(info.Resource); plain {
		return false
	}
	wanted, accept, ok := group.representationOf(r, storage)
	if !ok {
		return false
	}
	ctx, end := i.lists.Represent(request.WithNamespace(r.Context(), info.Namespace), wanted)
	defer end()
	inner := r.WithContext(ctx)
	inner.Header = r.Header.Clone()
	inner.Header.Set("Accept", accept)
	held := &heldResponse{ResponseWriter: w, before: w.Header().Clone(), wanted: wanted}
	api.ServeHTTP(responsewriter.WrapForHTTP1Or2(held), inner)
	if held.passed || (!held.withheld && wanted.Unused()) {
		return true // or nothing had to be written
	}
	if wanted.Unused() {
		group.plain.Store(info.Resource, struct{}{})
	}
	// Keep warnings, which the request's recorder adds only once.
	warnings := w.Header().Values("Warning")
	clear(w.Header())
	maps.Copy(w.Header(), held.before)
	if len(warnings) > 0 {
		w.Header()["Warning"] = warnings
	}
	return false
}

type listerWithTables interface {
	rest.Lister
	rest.TableConvertor
}

// audited reports whether the audit log records the response body.
func audited(ctx context.Context) bool {
	ac := audit.AuditContextFrom(ctx)
	return ac != nil && ac.Enabled() && !ac.GetEventLevel().Less(auditinternal.LevelRequestResponse)
}

// representationOf returns the requested representation, and the Accept header with which the
// server chooses the same format for the list itself. It returns false if only the server can
// respond.
func (g *servedGroup) representationOf(r *http.Request, storage listerWithTables) (*keptlists.Representation, string, bool) {
	asked, info, err := negotiation.NegotiateOutputMediaType(r, g.serializer, g.scope)
	if err != nil || !representationOnly(asked) || asked.Convert == nil || asked.Convert.GroupVersion() != metav1.SchemeGroupVersion ||
		(info.MediaType != runtime.ContentTypeJSON && info.MediaType != runtime.ContentTypeProtobuf) ||
		!same(info.Serializer, asked.Accepted.Serializer) { // indented
		return nil, "", false
	}
	codecs := apihelpers.GetMetaInternalVersionCodecs()
	own, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), info.MediaType)
	wanted := &keptlists.Representation{Encoder: codecs.EncoderForVersion(own.Serializer, metav1.SchemeGroupVersion)}
	switch asked.Convert.Kind {
	case "PartialObjectMetadataList":
	case "Table":
		options := &metav1.TableOptions{}
		if metainternalversionscheme.ParameterCodec.DecodeParameters(r.URL.Query(), metav1.SchemeGroupVersion, options) != nil ||
			(options.IncludeObject != "" && options.IncludeObject != metav1.IncludeMetadata) {
			return nil, "", false
		}
		wanted.Table = func(ctx context.Context, list runtime.Object) (*metav1.Table, error) {
			return storage.ConvertToTable(ctx, list, options)
		}
	default:
		return nil, "", false
	}
	rewritten := r.WithContext(r.Context())
	rewritten.Header = r.Header.Clone()
	// Error encoding does not accept "sv", so it skips this clause.
	accept := fmt.Sprintf("%s;sv=%s,%s", info.MediaType, g.scope.MetaGroupVersion.Version, r.Header.Get("Accept"))
	rewritten.Header.Set("Accept", accept)
	again, plain, err := negotiation.NegotiateOutputMediaType(rewritten, g.serializer, g.scope)
	if err != nil || again.Convert != nil || !same(plain.Serializer, info.Serializer) || !sameErrors(r, rewritten, g.serializer) {
		return nil, "", false
	}
	return wanted, accept, true
}

// encodedWhole reports whether the server encodes the response to a LIST as a whole before it
// writes: any but the list itself in compact JSON or protobuf.
func encodedWhole(r *http.Request) bool {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest || info.Verb != "list" {
		return false
	}
	// This scope rejects objects in protobuf, so they don't count as whole.
	asked, media, err := negotiation.NegotiateOutputMediaType(r, apihelpers.GetMetaInternalVersionCodecs(), customScope)
	return err == nil && (asked.Convert != nil || !representationOnly(asked) || media.MediaType != runtime.ContentTypeJSON || !same(media.Serializer, asked.Accepted.Serializer))
}

// representationOnly reports whether we know all options of a media type. With others, e.g.
// drop=metadata.managedFields (KEP-5958), the server must respond.
func representationOnly(asked negotiation.MediaTypeOptions) bool {
	known := negotiation.MediaTypeOptions{Convert: asked.Convert, UseServerVersion: asked.UseServerVersion, Stream: asked.Stream, Pretty: asked.Pretty}
	asked.Accepted = known.Accepted
	return reflect.DeepEqual(asked, known)
}

func sameErrors(a, b *http.Request, s runtime.NegotiatedSerializer) bool {
	_, ofA, errA := negotiation.NegotiateOutputMediaType(a, s, negotiation.DefaultEndpointRestrictions)
	_, ofB, errB := negotiation.NegotiateOutputMediaType(b, s, negotiation.DefaultEndpointRestrictions)
	return (errA == nil) == (errB == nil) && (errA != nil || same(ofA.Serializer, ofB.Serializer))
}

func same(a, b runtime.Serializer) bool {
	return a != nil && b != nil && reflect.TypeOf(a).Comparable() && a == b
}

// heldResponse forwards errors and responses in the wanted representation, and drops others.
type heldResponse struct {
	http.ResponseWriter
	before           http.Header
	wanted           *keptlists.Representation
	passed, withheld bool
}

func (h *heldResponse) Unwrap() http.ResponseWriter { return h.ResponseWriter }

func (h *heldResponse) WriteHeader(status int) {
	if h.passed || h.withheld {
		return
	}
	h.passed = status != http.StatusOK || h.wanted.Written()
	if h.withheld = !h.passed; h.passed {
		h.ResponseWriter.WriteHeader(status)
	}
}

func (h *heldResponse) Write(p []byte) (int, error) {
	h.WriteHeader(http.StatusOK)
	if h.withheld {
		return len(p), nil
	}
	return h.ResponseWriter.Write(p)
}

// Flush implements http.Flusher. It does not flush a withheld response.
func (h *heldResponse) Flush() {
	h.WriteHeader(http.StatusOK)
	if flusher, ok := h.ResponseWriter.(http.Flusher); ok && h.passed {
		flusher.Flush()
	}
}
