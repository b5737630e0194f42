// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"

	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/util/compatibility"
	basecompatibility "k8s.io/component-base/compatibility"
)

// effectiveVersion is the Kubernetes version that the libraries implement, in a
// form that clients can parse: builds outside Kubernetes have a template there.
type effectiveVersion struct {
	basecompatibility.EffectiveVersion
}

func newEffectiveVersion() effectiveVersion {
	return effectiveVersion{compatibility.DefaultBuildEffectiveVersion()}
}

// Info is what /version answers.
func (v effectiveVersion) Info() *apimachineryversion.Info {
	info := v.EffectiveVersion.Info()
	binary := v.BinaryVersion()
	info.GitVersion = fmt.Sprintf("v%d.%d.%d", binary.Major(), binary.Minor(), binary.Patch())
	info.GitCommit, info.GitTreeState = "", ""
	return info
}
