// SPDX-License-Identifier: Apache-2.0

package server

import (
	"testing"

	"github.com/stretchr/testify/require"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

// A call that can't work says why. The package integration/customresources tests
// calls that can.
func TestCustomResourcesRefuses(t *testing.T) {
	getter := genericoptions.NewEtcdOptions(&storagebackend.Config{}).CreateRESTOptionsGetter(&genericoptions.SimpleStorageFactory{}, nil)
	config := &genericapiserver.Config{RESTOptionsGetter: getter}
	_, err := CustomResources(nil, getter)
	require.EqualError(t, err, "server.CustomResources: config is nil")
	_, err = CustomResources(config, nil)
	require.EqualError(t, err, "server.CustomResources: own is nil")
	_, err = CustomResources(config, getter)
	require.ErrorIs(t, err, errNotInstalled)
}
