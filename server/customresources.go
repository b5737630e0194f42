// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/apihelpers"
)

// CustomResources returns the getter for the custom resources of a server of
// k8s.io/apiextensions-apiserver, ExtraConfig.CRDRESTOptionsGetter, whose caches
// are those of Install, with its options. getter is the one that the server would
// have, of NewCRDRESTOptionsGetter for example. Call CustomResources after
// Install on the same config, and before config is copied or completed.
//
// Lists of custom resources in compact JSON, plain or compressed, are answered from
// kept bytes from then on, as with InstallAPIGroup: for all served versions,
// namespaces, selectors and pages. Answers stay the same to the byte. Tables,
// metadata, YAML and CBOR, indented JSON, what an audit log has at level
// RequestResponse, lists that storage has answered and lists of fewer than four
// items are encoded as before.
//
// The server's handler of custom resources is given a list without items, which
// Install's handler around it adds. So the metric apiserver_response_sizes, which
// that handler writes itself, counts these lists without their items. If the
// config is that of a delegate, its handlers are not called, and the lists are
// encoded as before.
func CustomResources(config *genericapiserver.Config, getter generic.RESTOptionsGetter) (generic.RESTOptionsGetter, error) {
	switch {
	case config == nil:
		return nil, errors.New("server.CustomResources: config is nil")
	case getter == nil:
		return nil, errors.New("server.CustomResources: getter is nil")
	}
	caches, err := installedGetter(config.RESTOptionsGetter)
	if err != nil {
		return nil, err
	}
	caches.installed.lists.SwitchOnAnswers()
	return caches.around(getter), nil
}

// addAnswers makes a server of config answer lists of custom resources from kept
// bytes, once CustomResources was called.
func addAnswers(config *genericapiserver.Config, installed *installation) {
	build := config.BuildHandlerChainFunc
	if build == nil {
		build = genericapiserver.DefaultBuildHandlerChain
	}
	config.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return build(installed.lists.Answer(api, customResourceList), c)
	}
}

// customResourceList returns what resource a request lists, if it may be a custom
// one, whose list the server writes in compact JSON to the client only.
func customResourceList(r *http.Request) (of schema.GroupVersionResource, gzip, ok bool) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || r.Method != http.MethodGet || !info.IsResourceRequest || info.Verb != "list" || info.Subresource != "" || audited(r.Context()) {
		return of, false, false
	}
	// The codecs have the media types of those of custom resources, in their order.
	asked, media, err := negotiation.NegotiateOutputMediaType(r, apihelpers.GetMetaInternalVersionCodecs(), forms{metav1.SchemeGroupVersion.Version})
	if err != nil || asked.Convert != nil || media.MediaType != runtime.ContentTypeJSON || !same(media.Serializer, asked.Accepted.Serializer) {
		return of, false, false
	}
	of = schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	return of, mayCompressList(r), true
}
