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

// servedGroup is what InstallAPIGroup has installed of one version of a group.
type servedGroup struct {
	serializer runtime.NegotiatedSerializer
	// scope has the server's own rule by which handlers of the group accept media types.
	scope    *handlers.RequestScope
	storages map[string]rest.Storage // by resource
	// plain are the resources whose lists are not those of a cache, so that only the
	// server itself can bring them into another representation.
	plain sync.Map
	// private are the resources whose watches are not those of a cache, or are read by
	// a registry's Decorator or a filter.
	private sync.Map
}

// serve gives a group the serializer that writes kept bytes, and records the group, so that
// its lists are written from them in the representations that clients request. Nothing is done
// for resources that this cache does not answer for.
func (i *installation) serve(group *genericapiserver.APIGroupInfo) {
	scope := &handlers.RequestScope{
		MetaGroupVersion: *cmp.Or(group.MetaGroupVersion, &metav1.SchemeGroupVersion),
		TableConvertor:   rest.NewDefaultTableConvertor(schema.GroupResource{}), // only asked for whether there is one
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

// lacksProtobuf reports whether protobuf can't encode the objects of a storage as a version
// serves them. Connecters encode their responses themselves.
func lacksProtobuf(scheme *runtime.Scheme, gv schema.GroupVersion, storage rest.Storage) bool {
	kinds, _, err := scheme.ObjectKinds(storage.New())
	if _, connects := storage.(rest.Connecter); connects || err != nil {
		return false
	}
	served, err := scheme.New(gv.WithKind(kinds[0].Kind))
	_, encodes := served.(interface{ Marshal() ([]byte, error) })
	return err == nil && !encodes
}

// withoutProtobufOfObjects keeps the server from choosing protobuf for such objects, which
// would fail once they are created or deleted. Metadata has protobuf: of two parameters "as"
// the last one counts, and the server passes over a clause with an unknown one.
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

// servedBy returns the info of a GET with the verb, list or watch, and the group and the
// storage of its resource, nil unless InstallAPIGroup has put the resource on this cache.
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

// withRepresentations answers lists as Tables and as metadata from kept bytes, for the groups
// that InstallAPIGroup installs.
//
// The server converts a list before it encodes, and encodes what comes of that with a serializer
// that can't be replaced. So the request is passed on as one for the list itself, in the same
// format, and the encoder of the list writes the representation. Only the header Accept tells
// the API's handler which one is wanted. The rewritten header is one that errors are not
// encoded by.
func (i *installation) withRepresentations(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !i.serveRepresentation(api, w, r) {
			api.ServeHTTP(w, r)
		}
	})
}

// serveRepresentation answers a request for a list in another representation, and returns
// false, with nothing written, if the request is left to the server.
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
		return true // and nothing was written if nothing was to be
	}
	if wanted.Unused() {
		group.plain.Store(info.Resource, struct{}{})
	}
	// The warnings stay: the recorder of the request adds each of them once.
	warnings := w.Header().Values("Warning")
	clear(w.Header())
	maps.Copy(w.Header(), held.before)
	if len(warnings) > 0 {
		w.Header()["Warning"] = warnings
	}
	return false
}

// listerWithTables is a storage that lists, and makes Tables of lists.
type listerWithTables interface {
	rest.Lister
	rest.TableConvertor
}

// audited reports whether the answer to a request goes to the audit log, which
// has it as the client gets it.
func audited(ctx context.Context) bool {
	ac := audit.AuditContextFrom(ctx)
	return ac != nil && ac.Enabled() && !ac.GetEventLevel().Less(auditinternal.LevelRequestResponse)
}

// representationOf returns the representation that a request asks for, and the header Accept
// by which the server chooses the same format for the list itself; false if there is no such
// representation, or the server has to make it itself.
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
	// A server's version is not accepted where errors are encoded, so that errors
	// have the format that they have without this clause.
	accept := fmt.Sprintf("%s;sv=%s,%s", info.MediaType, g.scope.MetaGroupVersion.Version, r.Header.Get("Accept"))
	rewritten.Header.Set("Accept", accept)
	again, plain, err := negotiation.NegotiateOutputMediaType(rewritten, g.serializer, g.scope)
	if err != nil || again.Convert != nil || !same(plain.Serializer, info.Serializer) || !sameErrors(r, rewritten, g.serializer) {
		return nil, "", false
	}
	return wanted, accept, true
}

// encodedWhole reports whether a request is a LIST that the server, of itself, encodes as a whole
// before it writes: all but compact JSON and protobuf of the list itself.
func encodedWhole(r *http.Request) bool {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest || info.Verb != "list" {
		return false
	}
	// An object in protobuf is refused by this scope, and is not asked for whole.
	asked, media, err := negotiation.NegotiateOutputMediaType(r, apihelpers.GetMetaInternalVersionCodecs(), customScope)
	return err == nil && (asked.Convert != nil || !representationOnly(asked) || media.MediaType != runtime.ContentTypeJSON || !same(media.Serializer, asked.Accepted.Serializer))
}

// representationOnly reports whether the options of a media type are those of a representation that
// this package knows. With others, like drop=metadata.managedFields of KEP-5958, the server makes
// the list.
func representationOnly(asked negotiation.MediaTypeOptions) bool {
	known := negotiation.MediaTypeOptions{Convert: asked.Convert, UseServerVersion: asked.UseServerVersion, Stream: asked.Stream, Pretty: asked.Pretty}
	asked.Accepted = known.Accepted
	return reflect.DeepEqual(asked, known)
}

// sameErrors reports whether errors have one format in the answers to two
// requests.
func sameErrors(a, b *http.Request, s runtime.NegotiatedSerializer) bool {
	_, ofA, errA := negotiation.NegotiateOutputMediaType(a, s, negotiation.DefaultEndpointRestrictions)
	_, ofB, errB := negotiation.NegotiateOutputMediaType(b, s, negotiation.DefaultEndpointRestrictions)
	return (errA == nil) == (errB == nil) && (errA != nil || same(ofA.Serializer, ofB.Serializer))
}

// same reports whether two serializers are one.
func same(a, b runtime.Serializer) bool {
	return a != nil && b != nil && reflect.TypeOf(a).Comparable() && a == b
}

// heldResponse lets an answer pass that is in the wanted representation, or an error.
// Anything else is dropped.
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

// Flush implements http.Flusher: a response that is held back stays so.
func (h *heldResponse) Flush() {
	h.WriteHeader(http.StatusOK)
	if flusher, ok := h.ResponseWriter.(http.Flusher); ok && h.passed {
		flusher.Flush()
	}
}
