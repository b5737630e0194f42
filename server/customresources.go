// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"net/http"

	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/apihelpers"

	"github.com/kube-watchcache/watchcache/cacher"
)

// CustomResources returns the getter for the custom resources of a server of
// k8s.io/apiextensions-apiserver, ExtraConfig.CRDRESTOptionsGetter, whose caches
// are those of Install, with its options. getter is the one that the server would
// have, of NewCRDRESTOptionsGetter for example. Call CustomResources after
// Install on the same config, and before config is copied or completed.
//
// Lists of custom resources in compact JSON, plain or compressed, are answered from
// kept bytes from then on, as with InstallAPIGroup: for all served versions,
// namespaces, selectors and pages; lists as PartialObjectMetadataList too, in compact
// JSON and in protobuf; and lists as Tables in compact JSON, whose cells the server
// makes for every request, with the metadata of objects or with whole objects
// (includeObject). Answers stay the same to the byte. YAML and CBOR, indented JSON,
// Tables with includeObject=None, what an audit log has at level RequestResponse,
// lists that storage has answered and lists of fewer than four items are encoded as
// before.
//
// The server's handler of custom resources is given a list without items, or writes
// a Table without objects, which Install's handler around it adds. So the metric
// apiserver_response_sizes, which that handler writes itself, counts these answers
// without them. If the config is that of a delegate, its handlers are not called, and
// the lists are encoded as before.
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

// customResourceList returns what list a request is for, if it may be one of custom
// resources that the server writes to the client only, in a format that is kept.
func customResourceList(r *http.Request) (list cacher.Answerable, ok bool) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || r.Method != http.MethodGet || !info.IsResourceRequest || info.Verb != "list" || info.Subresource != "" || audited(r.Context()) {
		return list, false
	}
	// The codecs have the media types of those of custom resources, in their order.
	codecs := apihelpers.GetMetaInternalVersionCodecs()
	asked, media, err := negotiation.NegotiateOutputMediaType(r, codecs, customForms{forms{metav1.SchemeGroupVersion.Version}})
	if err != nil || !same(media.Serializer, asked.Accepted.Serializer) { // indented
		return list, false
	}
	list.Resource = schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	list.Gzip = mayCompressList(r)
	isJSON := media.MediaType == runtime.ContentTypeJSON
	if asked.Convert == nil {
		return list, isJSON
	}
	list.Form = &cacher.AnswerForm{
		Version:  asked.Convert.Version,
		Encoder:  codecs.EncoderForVersion(media.Serializer, asked.Convert.GroupVersion()),
		Protobuf: media.MediaType == runtime.ContentTypeProtobuf,
	}
	switch asked.Convert.Kind {
	case "PartialObjectMetadataList":
		// The items do not come last in protobuf's v1beta1.
		return list, isJSON || (list.Form.Protobuf && list.Form.Version == metav1.SchemeGroupVersion.Version)
	case "Table":
		options := &metav1.TableOptions{}
		if !isJSON || metainternalversionscheme.ParameterCodec.DecodeParameters(r.URL.Query(), metav1.SchemeGroupVersion, options) != nil {
			return list, false
		}
		list.Form.Table, list.Form.Objects = true, options.IncludeObject == metav1.IncludeObject
		return list, list.Form.Objects || options.IncludeObject == "" || options.IncludeObject == metav1.IncludeMetadata
	}
	return list, false
}

// customForms is what handlers of custom resources accept: no object of theirs has a
// form in protobuf but its metadata.
type customForms struct{ forms }

func (f customForms) AllowsMediaTypeTransform(mimeType, mimeSubType string, target *schema.GroupVersionKind) bool {
	if target == nil {
		return mimeType+"/"+mimeSubType != runtime.ContentTypeProtobuf
	}
	return f.forms.AllowsMediaTypeTransform(mimeType, mimeSubType, target)
}
