// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
)

func addFieldLabelConversionFuncs(scheme *runtime.Scheme) error {
	return scheme.AddFieldLabelConversionFunc(SchemeGroupVersion.WithKind("Device"), convertFieldLabel)
}

// convertFieldLabel accepts selectable fields, whose internal names are the same, and rejects
// others.
func convertFieldLabel(label, value string) (string, string, error) {
	switch label {
	case "metadata.name", "metadata.namespace",
		"spec.zone", "spec.owner", "spec.firmware.channel", "status.phase":
		return label, value, nil
	default:
		return "", "", fmt.Errorf("%q is not a selectable field of devices in %s", label, SchemeGroupVersion)
	}
}
