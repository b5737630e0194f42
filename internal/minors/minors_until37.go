// SPDX-License-Identifier: Apache-2.0

//go:build !k8s38

package minors

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"
)

// MalformedVersion returns the error for a GET whose resourceVersion can't be parsed, which
// is err: 400.
func MalformedVersion(err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
}

// CheckWatch returns the error for the options of a watch that storage must refuse. There
// are none before Kubernetes 1.38.
func CheckWatch(storage.ListOptions) error { return nil }
