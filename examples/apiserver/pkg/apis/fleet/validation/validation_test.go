// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
)

func valid() *fleet.Device {
	return &fleet.Device{
		ObjectMeta: metav1.ObjectMeta{Name: "switch-01", Namespace: "hamburg", ResourceVersion: "1"},
		Spec: fleet.DeviceSpec{Zone: "hh-1", Owner: "network", Model: "Arbor S48",
			Firmware: fleet.Firmware{Channel: fleet.FirmwareStable, Version: "1.2.3"}},
		Status: fleet.DeviceStatus{Phase: fleet.DeviceReady},
	}
}

func TestValidateDevice(t *testing.T) {
	require.Empty(t, ValidateDevice(valid()))
	for _, test := range []struct {
		field  string
		change func(*fleet.Device)
	}{
		{"metadata.name", func(d *fleet.Device) { d.Name = "Switch_01" }},
		{"metadata.namespace", func(d *fleet.Device) { d.Namespace = "" }},
		{"spec.zone", func(d *fleet.Device) { d.Spec.Zone = "" }},
		{"spec.zone", func(d *fleet.Device) { d.Spec.Zone = "hh.1" }},
		{"spec.owner", func(d *fleet.Device) { d.Spec.Owner = "" }},
		{"spec.owner", func(d *fleet.Device) { d.Spec.Owner = strings.Repeat("o", 64) }},
		{"spec.model", func(d *fleet.Device) { d.Spec.Model = " " }},
		{"spec.model", func(d *fleet.Device) { d.Spec.Model = strings.Repeat("m", maxModelLength+1) }},
		{"spec.firmware.channel", func(d *fleet.Device) { d.Spec.Firmware.Channel = "nightly" }},
		{"spec.firmware.version", func(d *fleet.Device) { d.Spec.Firmware.Version = strings.Repeat("1", maxVersionLength+1) }},
	} {
		device, changed := valid(), valid()
		test.change(changed)
		errs := ValidateDevice(changed)
		require.Len(t, errs, 1, test.field)
		require.Equal(t, test.field, errs[0].Field)
		if strings.HasPrefix(test.field, "spec.") {
			require.Equal(t, errs, ValidateDeviceUpdate(changed, device), "an update is checked as a creation is")
		}
	}
}

func TestValidateDeviceUpdate(t *testing.T) {
	device := valid()
	device.ResourceVersion = ""
	errs := ValidateDeviceUpdate(device, valid())
	require.Len(t, errs, 1)
	require.Equal(t, "metadata.resourceVersion", errs[0].Field)
}

func TestValidateDeviceStatusUpdate(t *testing.T) {
	require.Empty(t, ValidateDeviceStatusUpdate(valid(), valid()))
	for field, change := range map[string]func(*fleet.Device){
		"status.phase":              func(d *fleet.Device) { d.Status.Phase = "Gone" },
		"status.message":            func(d *fleet.Device) { d.Status.Message = strings.Repeat("x", maxMessageLength+1) },
		"status.observedGeneration": func(d *fleet.Device) { d.Status.ObservedGeneration = -1 },
	} {
		device := valid()
		change(device)
		errs := ValidateDeviceStatusUpdate(device, valid())
		require.Len(t, errs, 1, field)
		require.Equal(t, field, errs[0].Field)
	}
}
