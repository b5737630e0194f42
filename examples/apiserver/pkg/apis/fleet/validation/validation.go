// SPDX-License-Identifier: Apache-2.0

// Package validation validates devices.
package validation

import (
	"strings"

	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
)

// Maximum lengths, in bytes.
const (
	maxModelLength   = 128
	maxVersionLength = 64
	maxMessageLength = 1024
)

var (
	channels = sets.New(fleet.FirmwareStable, fleet.FirmwareBeta)
	phases   = sets.New(fleet.DevicePending, fleet.DeviceReady, fleet.DeviceDegraded, fleet.DeviceOffline)
)

// ValidateDevice validates a new device.
func ValidateDevice(device *fleet.Device) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMeta(&device.ObjectMeta, true,
		apimachineryvalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	return append(errs, validateSpec(&device.Spec, field.NewPath("spec"))...)
}

// ValidateDeviceUpdate validates an update of a device.
func ValidateDeviceUpdate(device, old *fleet.Device) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMetaUpdate(&device.ObjectMeta, &old.ObjectMeta, field.NewPath("metadata"))
	return append(errs, validateSpec(&device.Spec, field.NewPath("spec"))...)
}

// ValidateDeviceStatusUpdate validates an update of a device's status.
func ValidateDeviceStatusUpdate(device, old *fleet.Device) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMetaUpdate(&device.ObjectMeta, &old.ObjectMeta, field.NewPath("metadata"))
	return append(errs, validateStatus(&device.Status, field.NewPath("status"))...)
}

func validateSpec(spec *fleet.DeviceSpec, path *field.Path) field.ErrorList {
	errs := validateLabel(spec.Zone, path.Child("zone"))
	errs = append(errs, validateLabel(spec.Owner, path.Child("owner"))...)
	if strings.TrimSpace(spec.Model) == "" {
		errs = append(errs, field.Required(path.Child("model"), ""))
	}
	errs = append(errs, validateLength(spec.Model, maxModelLength, path.Child("model"))...)
	firmware := path.Child("firmware")
	if !channels.Has(spec.Firmware.Channel) {
		errs = append(errs, field.NotSupported(firmware.Child("channel"), spec.Firmware.Channel, sets.List(channels)))
	}
	return append(errs, validateLength(spec.Firmware.Version, maxVersionLength, firmware.Child("version"))...)
}

func validateStatus(status *fleet.DeviceStatus, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !phases.Has(status.Phase) {
		errs = append(errs, field.NotSupported(path.Child("phase"), status.Phase, sets.List(phases)))
	}
	if status.ObservedGeneration < 0 {
		errs = append(errs, field.Invalid(path.Child("observedGeneration"), status.ObservedGeneration, "must not be negative"))
	}
	return append(errs, validateLength(status.Message, maxMessageLength, path.Child("message"))...)
}

// validateLabel requires a DNS-1123 label, which can also be a label value and part of a host name.
func validateLabel(value string, path *field.Path) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	for _, message := range utilvalidation.IsDNS1123Label(value) {
		errs = append(errs, field.Invalid(path, value, message))
	}
	return errs
}

func validateLength(value string, limit int, path *field.Path) field.ErrorList {
	if len(value) <= limit {
		return nil
	}
	return field.ErrorList{field.TooLong(path, value, limit)}
}
