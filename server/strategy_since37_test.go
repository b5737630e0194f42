// SPDX-License-Identifier: Apache-2.0

//go:build !k8s36

package server

import "context"

func (anything) AllowCreateOnUpdate(context.Context) bool      { return false }
func (anything) AllowUnconditionalUpdate(context.Context) bool { return true }
