// SPDX-License-Identifier: Apache-2.0

//go:build k8s36

package device

func (strategy) AllowCreateOnUpdate() bool { return false }

func (strategy) AllowUnconditionalUpdate() bool { return true }
