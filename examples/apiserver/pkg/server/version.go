// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"

	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/util/compatibility"
	basecompatibility "k8s.io/component-base/compatibility"
)

// effectiveVersion is the Kubernetes version of the libraries, in a form that clients can parse:
// builds outside Kubernetes contain a template instead.
type effectiveVersion struct {
	basecompatibility.EffectiveVersion
}

func newEffectiveVersion() effectiveVersion {
	return effectiveVersion{compatibility.DefaultBuildEffectiveVersion()}
}

// Info returns the response of /version.
func (v effectiveVersion) Info() *apimachineryversion.Info {
	info := v.EffectiveVersion.Info()
	binary := v.BinaryVersion()
	info.GitVersion = fmt.Sprintf("v%d.%d.%d", binary.Major(), binary.Minor(), binary.Patch())
	info.GitCommit, info.GitTreeState = "", ""
	return info
}
