// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Device is one machine of the fleet.
type Device struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the owner of the device asks for.
	Spec DeviceSpec `json:"spec"`
	// status is what was last observed. Only the status subresource writes it.
	// +optional
	Status DeviceStatus `json:"status,omitempty"`
}

// DeviceSpec is what the owner of a device asks for.
type DeviceSpec struct {
	// zone is where the device stands: a DNS-1123 label. A selectable field.
	Zone string `json:"zone"`
	// owner is the team that answers for the device. A selectable field.
	Owner string `json:"owner"`
	// model is the manufacturer's name for the hardware.
	Model string `json:"model"`
	// firmware is what should run on the device.
	// +optional
	Firmware Firmware `json:"firmware,omitempty"`
}

// Firmware says which firmware a device should run.
type Firmware struct {
	// channel is where updates come from: stable (the default) or beta.
	// spec.firmware.channel is a selectable field.
	// +optional
	Channel FirmwareChannel `json:"channel,omitempty"`
	// version pins one release; empty: the channel's newest.
	// +optional
	Version string `json:"version,omitempty"`
}

// FirmwareChannel is a stream of firmware releases.
// +enum
type FirmwareChannel string

// The firmware channels.
const (
	FirmwareStable FirmwareChannel = "stable"
	FirmwareBeta   FirmwareChannel = "beta"
)

// DeviceStatus is what was last observed of a device.
type DeviceStatus struct {
	// phase sums the state up in one word: Pending, Ready, Degraded or Offline.
	// A selectable field.
	// +optional
	Phase DevicePhase `json:"phase,omitempty"`
	// message explains the phase to people.
	// +optional
	Message string `json:"message,omitempty"`
	// lastSeenTime is when the device last reported.
	// +optional
	LastSeenTime *metav1.Time `json:"lastSeenTime,omitempty"`
	// observedGeneration is the metadata.generation that the status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// DevicePhase is the state of a device in one word.
// +enum
type DevicePhase string

// The phases of a device. A new device is Pending.
const (
	DevicePending  DevicePhase = "Pending"
	DeviceReady    DevicePhase = "Ready"
	DeviceDegraded DevicePhase = "Degraded"
	DeviceOffline  DevicePhase = "Offline"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// DeviceList is a list of devices at one resource version.
type DeviceList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the devices.
	Items []Device `json:"items"`
}
