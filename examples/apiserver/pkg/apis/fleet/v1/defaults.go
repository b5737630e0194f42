// SPDX-License-Identifier: Apache-2.0

package v1

// SetDefaults_Firmware sets the default channel.
func SetDefaults_Firmware(obj *Firmware) {
	if obj.Channel == "" {
		obj.Channel = FirmwareStable
	}
}
