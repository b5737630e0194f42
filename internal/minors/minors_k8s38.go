// SPDX-License-Identifier: Apache-2.0

//go:build k8s38

package minors

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"
)

// MalformedVersion returns the error for a GET whose resourceVersion can't be parsed, which
// is err: 422.
func MalformedVersion(err error) error { return err }

// CheckWatch returns the error for the options of a watch that storage must refuse: without
// the previous object, storage can't see an object leave a selection.
func CheckWatch(opts storage.ListOptions) error {
	if opts.WatchWithoutPrevKV && !opts.Predicate.Empty() {
		return apierrors.NewInternalError(errors.New("watchWithoutPrevKV requires an empty predicate"))
	}
	return nil
}
