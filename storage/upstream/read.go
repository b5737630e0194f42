// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// object is one object, all of a namespace (without a name), or all (without both).
type object struct{ namespace, name string }

// object parses a key, or if recursive a key prefix.
func (s *Store) object(key string, recursive bool) (object, error) {
	prepared, err := storage.PrepareKey(s.config.ResourcePrefix, key, recursive)
	if err != nil {
		return object{}, err
	}
	rest := strings.TrimSuffix(strings.TrimPrefix(prepared, s.config.ResourcePrefix), "/")
	parts := strings.Split(rest, "/")
	switch {
	case rest == "" && recursive:
		return object{}, nil
	case s.config.Namespaced && recursive && len(parts) == 1:
		return object{namespace: parts[0]}, nil
	case s.config.Namespaced && !recursive && len(parts) == 2:
		return object{namespace: parts[0], name: parts[1]}, nil
	case !s.config.Namespaced && !recursive && len(parts) == 1:
		return object{name: parts[0]}, nil
	}
	return object{}, fmt.Errorf("invalid key %q: no request to the upstream reads that of %s", key, s.config.Resource.GroupResource())
}

// query is the scope and options of a list or watch.
type query struct {
	of      object
	options metav1.ListOptions
}

func (s *Store) query(key string, opts storage.ListOptions) (query, error) {
	of, err := s.object(key, opts.Recursive)
	if err != nil && s.config.Namespaced && !opts.Recursive { // not an object's key, e.g. a cache probing an old version
		of, err = s.object(key, true)
		of.name = "/"
	}
	if err != nil {
		return query{}, err
	}
	q := query{of: object{namespace: of.namespace}, options: metav1.ListOptions{
		ResourceVersion: opts.ResourceVersion, ResourceVersionMatch: opts.ResourceVersionMatch,
		Limit: opts.Predicate.Limit, Continue: opts.Predicate.Continue,
	}}
	field := opts.Predicate.Field
	if of.name != "" { // list or watch the collection, with a field selector
		one := fields.OneTermEqualSelector(metav1.ObjectNameField, of.name)
		if field == nil || field.Empty() {
			field = one
		} else if name, exact := field.RequiresExactMatch(metav1.ObjectNameField); !exact || name != of.name {
			field = fields.AndSelectors(field, one)
		}
	}
	q.options.FieldSelector, q.options.LabelSelector = text(field), text(opts.Predicate.Label)
	return q, nil
}

// text formats a selector. Selectors of nothing and of everything format alike, so the former get
// text that matches no object.
func text(selector interface{ String() string }) string {
	switch selector {
	case nil:
		return ""
	case labels.Nothing():
		return "a,!a"
	case fields.Nothing():
		return metav1.ObjectNameField + "=/"
	}
	return selector.String()
}

func with(r *rest.Request, options metav1.ListOptions) *rest.Request {
	return r.SpecificallyVersionedParams(&options, metav1.ParameterCodec, schema.GroupVersion{Version: "v1"})
}

// Get implements storage.Interface.
func (s *Store) Get(ctx context.Context, key string, opts storage.GetOptions, into runtime.Object) error {
	of, err := s.object(key, false)
	if err != nil {
		return err
	}
	err = s.get(of).SpecificallyVersionedParams(&metav1.GetOptions{ResourceVersion: opts.ResourceVersion}, metav1.ParameterCodec, schema.GroupVersion{Version: "v1"}).
		Do(ctx).Into(into)
	if err = s.failure(ctx, key, err); storage.IsNotFound(err) && opts.IgnoreNotFound {
		return runtime.SetZeroValue(into)
	}
	return err
}

// GetList implements storage.Interface. It returns the upstream's list with its continue token.
func (s *Store) GetList(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	q, err := s.query(key, opts)
	if err != nil {
		return err
	}
	if version, _ := versioner.ParseResourceVersion(opts.ResourceVersion); version > 0 && q.options.FieldSelector == metav1.ObjectNameField+"=/" {
		return cmp.Or(s.begins(ctx, q), versioner.UpdateList(into, version, "", nil))
	}
	return s.listed(ctx, with(s.get(q.of), q.options).Do(ctx).Into(into))
}

// begins returns an error if no watch can start at q's version, although the upstream may list it.
func (s *Store) begins(ctx context.Context, q query) error {
	q.of, q.options = object{}, metav1.ListOptions{ResourceVersion: q.options.ResourceVersion, TimeoutSeconds: ptr.To[int64](1)}
	opened, err := s.open(ctx, q)
	if err != nil {
		return err
	}
	defer opened.Stop()
	if event := <-opened.ResultChan(); event.Type == watch.Error {
		return apierrors.FromObject(event.Object)
	}
	return ctx.Err()
}

// listed updates missing after a list or the start of a watch, and translates its error.
func (s *Store) listed(ctx context.Context, err error) error {
	switch {
	case err == nil:
		s.missing.Store(false)
	case noResource(err) && s.gone(ctx):
		s.missing.Store(true)
	}
	return s.failure(ctx, "", err)
}

// gone reports whether discovery lacks the resource. Other 404s may be a load balancer's.
func (s *Store) gone(ctx context.Context) bool {
	gv, root := s.config.Resource.GroupVersion(), "/apis/"
	if gv.Group == "" {
		root = "/api/"
	}
	discover := func(path string, into any) error {
		body, err := s.client.Get().AbsPath(path).MaxRetries(0).SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Raw()
		return cmp.Or(err, json.Unmarshal(body, into))
	}
	var resources metav1.APIResourceList
	err := discover(root+gv.String(), &resources)
	if err == nil {
		return resources.GroupVersion == gv.String() && !slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool { return r.Name == s.config.Resource.Resource })
	}
	var groups metav1.APIGroupList
	return apierrors.IsNotFound(err) && discover("/apis", &groups) == nil && groups.Kind == "APIGroupList" && !slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool {
		return slices.ContainsFunc(g.Versions, func(v metav1.GroupVersionForDiscovery) bool { return v.GroupVersion == gv.String() })
	})
}

// head is a list's metadata, and its number of items.
type head struct {
	metav1.ListMeta `json:"metadata"`
	Items           []struct{} `json:"items"`
}

// onlyMetadata requests metadata only. Upstreams without support send the whole list.
const onlyMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"

// head lists one object consistently. An upstream with a watch cache first updates that.
func (s *Store) head(ctx context.Context) (head, error) {
	quiet := klog.NewContext(ctx, klog.Logger{}) // client-go would log responses canceled with a proof
	body, err := with(s.get(object{}), metav1.ListOptions{Limit: 1}).SetHeader("Accept", onlyMetadata).Do(quiet).Raw()
	if err := s.listed(ctx, err); err != nil {
		return head{}, err
	}
	var h head
	if err := json.Unmarshal(body, &h); err != nil {
		return head{}, fmt.Errorf("the upstream's list of %s: %w", s.config.Resource.GroupResource(), err)
	}
	return h, nil
}

// GetCurrentResourceVersion implements storage.Interface.
func (s *Store) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	before := s.told.Load()
	head, err := s.head(ctx)
	if err != nil {
		return 0, err
	}
	rv, err := strconv.ParseUint(head.ResourceVersion, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the upstream's list of %s has the resourceVersion %q: only numbers can be compared", s.config.Resource.GroupResource(), head.ResourceVersion)
	}
	for {
		told := s.told.Load()
		// A version older than an earlier list's belongs to another history.
		if (rv <= told && rv >= before) || s.told.CompareAndSwap(told, rv) {
			return rv, nil
		}
	}
}

// failure translates err into a storage error or a Status. key is empty for lists and watches.
func (s *Store) failure(ctx context.Context, key string, err error) error {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case key != "" && apierrors.IsNotFound(err) && !noResource(err) && named(err, path.Base(key)):
		return storage.NewKeyNotFoundError(key, 0)
	case key != "" && apierrors.IsAlreadyExists(err):
		return storage.NewKeyExistsError(key, 0)
	case noResource(err) && !s.missing.Load():
		return apierrors.NewServiceUnavailable(fmt.Sprintf("what answers for the upstream of %s is no API server: it has no Status, and discovery does not confirm that the resource is missing", s.config.Resource.GroupResource()))
	case errors.As(err, &status):
		return err
	}
	var sent *url.Error // with the upstream's address, which clients must not see
	if errors.As(err, &sent) {
		return apierrors.NewTimeoutError(fmt.Sprintf("the upstream of %s gives no answer: %v", s.config.Resource.GroupResource(), sent.Err), 1)
	}
	return err
}

// named reports whether a NotFound names the object, not its namespace.
func named(err error, name string) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Name == name
}

// noResource reports whether a 404 without a Status suggests that the upstream lacks the resource.
func noResource(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}
