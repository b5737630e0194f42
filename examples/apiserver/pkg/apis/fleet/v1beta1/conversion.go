// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"k8s.io/apimachinery/pkg/conversion"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
)

// Convert_v1beta1_DeviceSpec_To_fleet_DeviceSpec converts the two firmware fields to one struct.
func Convert_v1beta1_DeviceSpec_To_fleet_DeviceSpec(in *DeviceSpec, out *fleet.DeviceSpec, s conversion.Scope) error {
	if err := autoConvert_v1beta1_DeviceSpec_To_fleet_DeviceSpec(in, out, s); err != nil {
		return err
	}
	out.Firmware = fleet.Firmware{Channel: fleet.FirmwareChannel(in.FirmwareChannel), Version: in.FirmwareVersion}
	return nil
}

// Convert_fleet_DeviceSpec_To_v1beta1_DeviceSpec converts the firmware struct to two fields.
func Convert_fleet_DeviceSpec_To_v1beta1_DeviceSpec(in *fleet.DeviceSpec, out *DeviceSpec, s conversion.Scope) error {
	if err := autoConvert_fleet_DeviceSpec_To_v1beta1_DeviceSpec(in, out, s); err != nil {
		return err
	}
	out.FirmwareChannel = FirmwareChannel(in.Firmware.Channel)
	out.FirmwareVersion = in.Firmware.Version
	return nil
}
