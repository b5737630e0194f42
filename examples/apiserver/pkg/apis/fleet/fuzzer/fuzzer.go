// SPDX-License-Identifier: Apache-2.0

// Package fuzzer creates random devices for round-trip tests.
package fuzzer

import (
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	v1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1beta1"
)

// Funcs sets fields that defaulting would change: an empty firmware channel would not survive a
// round trip.
func Funcs(serializer.CodecFactory) []any {
	return []any{
		func(firmware *fleet.Firmware, c randfill.Continue) {
			c.FillNoCustom(firmware)
			firmware.Channel = fleet.FirmwareChannel(channel(c))
		},
		func(firmware *v1.Firmware, c randfill.Continue) {
			c.FillNoCustom(firmware)
			firmware.Channel = v1.FirmwareChannel(channel(c))
		},
		func(spec *v1beta1.DeviceSpec, c randfill.Continue) {
			c.FillNoCustom(spec)
			spec.FirmwareChannel = v1beta1.FirmwareChannel(channel(c))
		},
	}
}

func channel(c randfill.Continue) string {
	return []string{"stable", "beta", "nightly"}[c.Intn(3)]
}
