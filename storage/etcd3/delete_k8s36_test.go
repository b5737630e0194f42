// SPDX-License-Identifier: Apache-2.0

//go:build k8s36

package etcd3_test

import "k8s.io/apiserver/pkg/storage"

var deleteUnreadable = storage.DeleteOptions{IgnoreStoreReadError: true}
