// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"

	v1 "github.com/kube-watchcache/watchcache/examples/minimal/api/v1"
)

func newStorage(scheme *runtime.Scheme, getter generic.RESTOptionsGetter) (rest.Storage, error) {
	resource := v1.GroupVersion.WithResource("widgets").GroupResource()
	strategy := strategy{scheme, names.SimpleNameGenerator}
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &v1.Widget{} },
		NewListFunc:               func() runtime.Object { return &v1.WidgetList{} },
		DefaultQualifiedResource:  resource,
		SingularQualifiedResource: v1.GroupVersion.WithResource("widget").GroupResource(),
		CreateStrategy:            strategy,
		UpdateStrategy:            strategy,
		DeleteStrategy:            strategy,
		TableConvertor:            rest.NewDefaultTableConvertor(resource),
	}
	return store, store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: getter, AttrFunc: attributes})
}

// attributes returns the labels and the selectable fields, as in AddToScheme.
func attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	widget, ok := obj.(*v1.Widget)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not a widget", obj)
	}
	selectable := fields.Set{"spec.color": widget.Spec.Color}
	return widget.Labels, generic.AddObjectMetaFieldsSet(selectable, &widget.ObjectMeta, true), nil
}

type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

func (strategy) NamespaceScoped() bool { return true }

func (strategy) PrepareForCreate(context.Context, runtime.Object) {}

func (strategy) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}

func (strategy) Validate(_ context.Context, obj runtime.Object) (errs field.ErrorList) {
	spec, path := obj.(*v1.Widget).Spec, field.NewPath("spec")
	if spec.Color == "" {
		errs = append(errs, field.Required(path.Child("color"), ""))
	}
	if spec.Size < 0 {
		errs = append(errs, field.Invalid(path.Child("size"), spec.Size, "must not be negative"))
	}
	return errs
}

func (s strategy) ValidateUpdate(ctx context.Context, obj, _ runtime.Object) field.ErrorList {
	return s.Validate(ctx, obj)
}

func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

func (strategy) Canonicalize(runtime.Object) {}

func (strategy) AllowCreateOnUpdate(context.Context) bool { return false }

func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }
