// SPDX-License-Identifier: Apache-2.0

package poddata

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/storage/names"
)

// Strategy is a registry strategy for namespaced objects that accepts all writes.
type Strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

// NewStrategy returns a Strategy for the objects of scheme.
func NewStrategy(scheme *runtime.Scheme) Strategy {
	return Strategy{scheme, names.SimpleNameGenerator}
}

func (Strategy) NamespaceScoped() bool                                            { return true }
func (Strategy) PrepareForCreate(context.Context, runtime.Object)                 {}
func (Strategy) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}
func (Strategy) Canonicalize(runtime.Object)                                      {}
func (Strategy) Validate(context.Context, runtime.Object) field.ErrorList         { return nil }
func (Strategy) WarningsOnCreate(context.Context, runtime.Object) []string        { return nil }
func (Strategy) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}
func (Strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}
