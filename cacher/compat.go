// SPDX-License-Identifier: Apache-2.0

package cacher

import "k8s.io/apiserver/pkg/storage"

// Decorators that were written by hand for the cacher of k8s.io/apiserver move
// over by changing an import: the functions that they call exist here as well.

// NewCacherFromConfig is New.
func NewCacherFromConfig(config Config) (*Cacher, error) { return New(config) }

// NewCacheDelegator returns the cache itself, which decides by itself what
// goes to storage. Stop may be called on both.
func NewCacheDelegator(cache *Cacher, _ storage.Interface) *Cacher { return cache }
