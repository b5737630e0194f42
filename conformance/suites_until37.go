// SPDX-License-Identifier: Apache-2.0

//go:build !k8s38

package conformance

import (
	"context"
	"testing"

	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
)

func runTestGet(ctx context.Context, t *testing.T, _ *fixture, s storage.Interface) {
	storagetesting.RunTestGet(ctx, t, s)
}

func runTestWatchDeleteEventObjectHaveLatestRV(ctx context.Context, t *testing.T, _ *fixture, s storage.Interface) {
	storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV(ctx, t, s)
}
