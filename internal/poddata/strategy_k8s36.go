// SPDX-License-Identifier: Apache-2.0

//go:build k8s36

package poddata

func (Strategy) AllowCreateOnUpdate() bool      { return false }
func (Strategy) AllowUnconditionalUpdate() bool { return true }
