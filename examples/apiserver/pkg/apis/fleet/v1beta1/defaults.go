// SPDX-License-Identifier: Apache-2.0

package v1beta1

// SetDefaults_DeviceSpec sets the default firmware channel.
func SetDefaults_DeviceSpec(obj *DeviceSpec) {
	if obj.FirmwareChannel == "" {
		obj.FirmwareChannel = FirmwareStable
	}
}
