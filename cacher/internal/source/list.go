// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
)

// InitialState collects the objects of a list as its pages arrive, in place of the Reflector, which
// receives an empty list. Not safe for concurrent use.
type InitialState interface {
	Add(object runtime.Object)
}

// TakeInitialState returns the objects of the Reflector's last list, once, or nil.
func (s *Source) TakeInitialState() InitialState {
	state := s.listed.Swap(nil)
	if state == nil {
		return nil
	}
	return *state
}

// ListWithContext lists the storage into an InitialState at its latest version, whatever version
// the Reflector requests, and returns an empty list.
func (s *Source) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	// The Reflector does not await its list calls, but Config.Tasks does.
	if !s.config.Tasks.Begin() {
		return nil, tasks.ErrStopped
	}
	defer s.config.Tasks.End()
	list, err := s.list(ctx, options.Limit)
	if err != nil {
		return nil, redactedError{err}
	}
	return list, nil
}

// list lists the storage in pages of pageSize objects, or in one page if that is 0. The
// InitialState's builder works on one page while list reads the next.
func (s *Source) list(ctx context.Context, pageSize int64) (runtime.Object, error) {
	// This list fulfills earlier orders.
	select {
	case <-s.relistOrder:
	default:
	}
	s.listed.Store(nil)
	state := s.config.Owner.ListStarts()
	s.watchAhead(ctx)
	opts := storage.ListOptions{Recursive: true}
	var version string
	for {
		if limit := s.pageLimit.Load(); pageSize > 0 && limit > 0 {
			pageSize = min(pageSize, limit)
		}
		opts.Predicate.Limit = pageSize
		pageVersion, next, err := s.listPage(ctx, s.config.Prefix, 0, opts, func(object runtime.Object) error {
			state.Add(object)
			return nil
		})
		if apierrors.IsResourceExpired(err) && pageSize > 0 && opts.Predicate.Continue != "" {
			return s.list(ctx, 0) // a single page can't expire
		}
		if pageSize > 1 && TooLarge(err) {
			s.pageLimit.Store(pageSize / 2)
			continue
		}
		if err != nil {
			return nil, err
		}
		if version == "" {
			version = pageVersion
		}
		if next == "" {
			break
		}
		opts.Predicate.Continue = next
	}
	list := s.config.NewList()
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	accessor.SetResourceVersion(version)
	s.listed.Store(&state)
	return list, nil
}

// listPage calls take with each object of a page, exactly at version unless that is 0. It returns
// the page's resourceVersion and continue token.
func (s *Source) listPage(ctx context.Context, key string, version uint64, opts storage.ListOptions, take func(runtime.Object) error) (pageVersion, next string, err error) {
	if err := ctx.Err(); err != nil {
		return "", "", err // a storage may ignore ctx
	}
	opts.Predicate.Label = labels.Everything()
	opts.Predicate.Field = fields.Everything()
	exact := strconv.FormatUint(version, 10)
	if version > 0 && opts.Predicate.Continue == "" { // otherwise the token contains the version
		opts.ResourceVersion = exact
		opts.ResourceVersionMatch = metav1.ResourceVersionMatchExact
	}
	list := s.config.NewList()
	if err := s.config.Storage.GetList(ctx, key, opts, list); err != nil {
		return "", "", err
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return "", "", err
	}
	pageVersion = accessor.GetResourceVersion()
	if version > 0 && pageVersion != exact {
		return "", "", fmt.Errorf("storage answered a list at resourceVersion %s with resourceVersion %q", exact, pageVersion)
	}
	// WithAlloc copies each object, since a pointer into the page would retain the page.
	return pageVersion, accessor.GetContinue(), meta.EachListItemWithAlloc(list, take)
}

// TooLarge reports whether a list exceeded the size limit of a gRPC message. etcd before 3.7 sends
// a page as one message of at most 2 GiB.
func TooLarge(err error) bool {
	return status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "message larger than max")
}
