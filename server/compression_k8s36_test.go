// SPDX-License-Identifier: Apache-2.0

//go:build k8s36

package server

import "testing"

// The server of Kubernetes 1.36 compresses no watch, and has no feature for it.
const serverCompressesWatches = false

func disableCompressedWatches(*testing.T) {}
