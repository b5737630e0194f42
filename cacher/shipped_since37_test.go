// SPDX-License-Identifier: Apache-2.0

//go:build !k8s36

package cacher_test

import storagemetrics "k8s.io/apiserver/pkg/storage/metrics"

const shippedCountsFillErrors = true

func registerShippedStorage() { storagemetrics.Register() }
