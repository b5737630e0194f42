// SPDX-License-Identifier: Apache-2.0

//go:build !k8s36

package poddata

import "context"

func (Strategy) AllowCreateOnUpdate(context.Context) bool      { return false }
func (Strategy) AllowUnconditionalUpdate(context.Context) bool { return true }
