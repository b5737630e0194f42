// SPDX-License-Identifier: Apache-2.0

package fleet

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Device is one machine of the fleet.
type Device struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   DeviceSpec
	Status DeviceStatus
}

// DeviceSpec is what the owner of a device asks for.
type DeviceSpec struct {
	// Zone is where the device stands: a DNS-1123 label. Selectable.
	Zone string
	// Owner is the team that answers for the device. Selectable.
	Owner string
	// Model is the manufacturer's name for the hardware.
	Model string
	// Firmware is what should run on the device.
	Firmware Firmware
}

// Firmware says which firmware a device should run.
type Firmware struct {
	// Channel is where updates come from. Selectable.
	Channel FirmwareChannel
	// Version pins one release; empty: the channel's newest.
	Version string
}

// FirmwareChannel is a stream of firmware releases.
type FirmwareChannel string

// The firmware channels.
const (
	FirmwareStable FirmwareChannel = "stable"
	FirmwareBeta   FirmwareChannel = "beta"
)

// DeviceStatus is what was last observed; only the status subresource writes it.
type DeviceStatus struct {
	// Phase sums the state up in one word. Selectable.
	Phase DevicePhase
	// Message explains the phase to people.
	Message string
	// LastSeenTime is when the device last reported.
	LastSeenTime *metav1.Time
	// ObservedGeneration is the metadata.generation that the status describes.
	ObservedGeneration int64
}

// DevicePhase is the state of a device in one word.
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
	metav1.TypeMeta
	metav1.ListMeta

	Items []Device
}
