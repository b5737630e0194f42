// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/sharding"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// request is a list or a watch in terms of storage.Interface.
type request struct {
	key     string
	options storage.ListOptions
	timeout time.Duration // 0 means none
}

// request converts a client's options to storage options, like an API server between its HTTP
// handler and storage. Invalid options are a BadRequest with the option and its value.
func (l *ListWatch) request(o metav1.ListOptions, watch bool) (request, error) {
	if l.cache == nil {
		return request{}, errNoCache
	}
	o.Watch = watch // tweaks may read it
	for _, tweak := range l.tweaks {
		tweak(&o)
	}
	o.Watch = watch
	in, err := l.parse(&o)
	if err != nil {
		return request{}, err
	}
	r := request{options: storage.ListOptions{
		ResourceVersion: in.ResourceVersion,
		Recursive:       true,
		Predicate: storage.SelectionPredicate{
			Label: in.LabelSelector, Field: in.FieldSelector, GetAttrs: l.config.GetAttrsFunc,
		},
	}}
	if watch {
		r.options.SendInitialEvents = in.SendInitialEvents
		r.options.Predicate.AllowWatchBookmarks = in.AllowWatchBookmarks
	} else {
		r.options.ResourceVersionMatch = in.ResourceVersionMatch
		r.options.Predicate.Limit, r.options.Predicate.Continue = in.Limit, in.Continue
	}
	if s := o.TimeoutSeconds; s != nil && *s < 0 {
		return request{}, wrong("timeoutSeconds", strconv.FormatInt(*s, 10), errors.New("must not be negative"))
	} else if s != nil && *s <= int64(math.MaxInt64/time.Second) {
		r.timeout = time.Duration(*s) * time.Second
	}
	// Shard selectors (KEP-5866) need their feature gate, as in an API server.
	if o.ShardSelector != "" && utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch) {
		if r.options.Predicate.ShardSelector, err = sharding.Parse(o.ShardSelector); err != nil {
			return request{}, wrong("shardSelector", o.ShardSelector, err)
		}
	}
	return r, l.narrow(&r)
}

// parse parses the selectors, sets the API server's defaults, and validates the combination.
func (l *ListWatch) parse(o *metav1.ListOptions) (*internalversion.ListOptions, error) {
	label, err := labels.Parse(o.LabelSelector)
	if err != nil {
		return nil, wrong("labelSelector", o.LabelSelector, err)
	}
	field, err := fields.ParseSelector(o.FieldSelector)
	if err == nil {
		err = l.checkFields(field)
	}
	if err != nil {
		return nil, wrong("fieldSelector", o.FieldSelector, err)
	}
	if _, err := l.config.Versioner.ParseResourceVersion(o.ResourceVersion); err != nil {
		return nil, wrong("resourceVersion", o.ResourceVersion, err)
	}
	in := &internalversion.ListOptions{
		LabelSelector: label, FieldSelector: field, Watch: o.Watch, AllowWatchBookmarks: o.AllowWatchBookmarks,
		ResourceVersion: o.ResourceVersion, ResourceVersionMatch: o.ResourceVersionMatch,
		Limit: o.Limit, Continue: o.Continue, SendInitialEvents: o.SendInitialEvents,
	}
	internalversion.SetListOptionsDefaults(in, true)
	if problems := validation.ValidateListOptions(in, true); len(problems) > 0 {
		value := string(o.ResourceVersionMatch)
		if problems[0].Field == "sendInitialEvents" {
			value = strconv.FormatBool(*o.SendInitialEvents)
		}
		return nil, wrong(problems[0].Field, value, problems.ToAggregate())
	}
	return in, nil
}

func wrong(option, value string, why error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("ListOptions.%s is %q: %v", option, value, why))
}

// narrow sets the narrowest key or prefix that the namespace and field selector allow. The selector
// stays, since it may select nothing within this prefix.
func (l *ListWatch) narrow(r *request) error {
	r.key = l.config.ResourcePrefix
	namespace := l.namespace
	if namespace == metav1.NamespaceAll {
		namespace, _ = r.options.Predicate.Field.RequiresExactMatch(namespaceField)
	}
	switch prefix, err := l.prefixOf(namespace); {
	case err == nil:
		r.key = prefix
	case l.namespace != metav1.NamespaceAll:
		return apierrors.NewBadRequest(fmt.Sprintf("informer.InNamespace is %q: %v", namespace, err))
	default:
		namespace = ""
	}
	if name, ok := r.options.Predicate.MatchesSingle(); ok {
		if key, ok := l.single(namespace, name); ok {
			r.key, r.options.Recursive = key, false
		}
	}
	return nil
}

const (
	nameField      = "metadata.name"
	namespaceField = "metadata.namespace"
)

// fields returns the fields of an empty object, i.e. those that selectors can use, or nil if the
// resource's GetAttrsFunc panics or fails.
func (l *ListWatch) fields() (set fields.Set) {
	defer func() { _ = recover() }()
	if _, known, err := l.config.GetAttrsFunc(l.config.NewFunc()); err == nil {
		set = known
	}
	return set
}

// checkFields returns an error for a field unknown to the resource, as an API server does.
// Otherwise a misspelt field would silently select nothing.
func (l *ListWatch) checkFields(selector fields.Selector) error {
	for _, r := range selector.Requirements() {
		if r.Field == nameField || r.Field == namespaceField {
			continue
		}
		if known := l.fields(); known != nil && !known.Has(r.Field) {
			return fmt.Errorf("%s can't be selected by %q, only by %s",
				l.config.GroupResource, r.Field, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
	}
	return nil
}

func (l *ListWatch) keyOf(namespace, name string) (string, error) {
	object := l.config.NewFunc()
	accessor, err := meta.Accessor(object)
	if err != nil {
		return "", err
	}
	accessor.SetNamespace(namespace)
	accessor.SetName(name)
	return l.config.KeyFunc(object)
}

// namespaced reports whether keys depend on the namespace.
func (l *ListWatch) namespaced() (bool, error) {
	one, err := l.keyOf("one", "x")
	if err != nil {
		return false, err
	}
	two, err := l.keyOf("two", "x")
	return one != two, err
}

// prefixOf returns the prefix of all keys of a namespace, with a trailing "/".
func (l *ListWatch) prefixOf(namespace string) (string, error) {
	if problems := content.IsPathSegmentName(namespace); len(problems) > 0 || namespace == "" {
		return "", errors.New(strings.Join(append([]string{"not a valid name of a namespace"}, problems...), ": "))
	}
	switch namespaced, err := l.namespaced(); {
	case err != nil:
		return "", fmt.Errorf("cacher.Config.KeyFunc fails for an empty object: %w", err)
	case !namespaced:
		return "", fmt.Errorf("%s has no namespaces", l.config.GroupResource)
	}
	var prefix string
	for _, name := range []string{"x", "y"} {
		key, err := l.keyOf(namespace, name)
		if err != nil {
			return "", fmt.Errorf("cacher.Config.KeyFunc fails for an object in this namespace: %w", err)
		}
		root, ok := strings.CutSuffix(key, "/"+name)
		root += "/"
		if !ok || !strings.HasPrefix(root, l.config.ResourcePrefix) || (prefix != "" && root != prefix) {
			return "", fmt.Errorf("the keys of %s do not begin with the namespace: one key is %q", l.config.GroupResource, key)
		}
		prefix = root
	}
	return prefix, nil
}

// single returns the key of the only object that can have the name. It returns false if there may
// be several or none.
func (l *ListWatch) single(namespace, name string) (string, bool) {
	if name == "" || len(content.IsPathSegmentName(name)) > 0 {
		return "", false
	}
	if namespace == "" {
		if namespaced, err := l.namespaced(); err != nil || namespaced {
			return "", false
		}
	}
	key, err := l.keyOf(namespace, name)
	return key, err == nil
}
