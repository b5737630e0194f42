// SPDX-License-Identifier: Apache-2.0

package v1beta1

// SetDefaults_DeviceSpec fills in what the client left out.
func SetDefaults_DeviceSpec(obj *DeviceSpec) {
	if obj.FirmwareChannel == "" {
		obj.FirmwareChannel = FirmwareStable
	}
}
