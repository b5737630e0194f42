// SPDX-License-Identifier: Apache-2.0

//go:build k8s36

package server

func (anything) AllowCreateOnUpdate() bool      { return false }
func (anything) AllowUnconditionalUpdate() bool { return true }
