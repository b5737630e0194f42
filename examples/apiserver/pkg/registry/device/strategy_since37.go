// SPDX-License-Identifier: Apache-2.0

//go:build !k8s36

package device

import "context"

func (strategy) AllowCreateOnUpdate(context.Context) bool { return false }

func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }
