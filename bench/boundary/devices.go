// SPDX-License-Identifier: Apache-2.0

package boundary

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

const (
	// namespaces is how many the devices are spread over.
	namespaces = 20
	namePrefix = "bench-device-"
)

// resourcePath is where the keys of devices are below a server's prefix.
const resourcePath = "fleet.example.com/devices"

// key is where storage keeps the i-th device.
func key(prefix string, i int) string {
	return fmt.Sprintf("%s/%s/%s/%s", prefix, resourcePath, namespace(i), deviceName(i))
}

func namespace(i int) string  { return fmt.Sprintf("fleet-%02d", i%namespaces) }
func deviceName(i int) string { return fmt.Sprintf("%s%06d", namePrefix, i) }

// words is what texts are made of. A text that is all the same would compress as
// no real object does.
var words = strings.Fields(`power supply fan sensor rack row aisle switch port uplink firmware image
	checksum temperature nominal degraded voltage humidity pressure calibrated replaced inspected
	scheduled maintenance window technician ticket vendor contract expires warranty serial batch
	revision battery controller gateway antenna signal latency packet loss retry backoff healthy
	primary secondary standby failover region zone site floor cabinet position notes inventory`)

// device returns the i-th device, of about 3.5 KB in JSON, as storage keeps it
// after the given number of changes.
func device(i, changes int) ([]byte, error) {
	random := rand.New(rand.NewPCG(uint64(i), 1))
	created := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, i%86_400, 0, time.UTC))
	seen := metav1.NewTime(created.Add(time.Duration(changes%1_000_000) * time.Second))
	d := fleetv1.Device{
		TypeMeta: metav1.TypeMeta{APIVersion: fleetv1.SchemeGroupVersion.String(), Kind: "Device"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace(i), Name: deviceName(i), UID: types.UID(uid(random)),
			Generation: 1, CreationTimestamp: created,
			Labels: map[string]string{
				"app.kubernetes.io/name": "device", "app.kubernetes.io/managed-by": "fleet-controller",
				"fleet.example.com/batch": fmt.Sprintf("batch-%02d", i%100), "fleet.example.com/rack": fmt.Sprintf("rack-%03d", i%250),
			},
			Annotations: map[string]string{
				"fleet.example.com/certificate-digest": digits(random, 64),
				"fleet.example.com/inventory":          text(random, 640),
				"fleet.example.com/last-inspection":    text(random, 290),
			},
			ManagedFields: managedFields(created, seen),
		},
		Spec: fleetv1.DeviceSpec{
			Zone: fmt.Sprintf("zone-%c", 'a'+i%5), Owner: fmt.Sprintf("team-%02d", i%30), Model: "acme-" + digits(random, 12),
			Firmware: fleetv1.Firmware{Channel: fleetv1.FirmwareStable, Version: "v2.14." + digits(random, 6)},
		},
		Status: fleetv1.DeviceStatus{
			Phase: fleetv1.DeviceReady, LastSeenTime: &seen, ObservedGeneration: 1,
			Message: fmt.Sprintf("report %09d: %s", changes, text(random, 960)),
		},
	}
	return json.Marshal(&d)
}

func managedFields(created, seen metav1.Time) []metav1.ManagedFieldsEntry {
	entry := func(manager, subresource string, at metav1.Time, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: fleetv1.SchemeGroupVersion.String(),
			Time: &at, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields), Subresource: subresource,
		}
	}
	return []metav1.ManagedFieldsEntry{
		entry("fleet-controller", "", created, `{"f:metadata":{"f:annotations":{".":{},"f:fleet.example.com/certificate-digest":{},`+
			`"f:fleet.example.com/inventory":{},"f:fleet.example.com/last-inspection":{}},"f:labels":{".":{},"f:app.kubernetes.io/managed-by":{},`+
			`"f:app.kubernetes.io/name":{},"f:fleet.example.com/batch":{},"f:fleet.example.com/rack":{}}},`+
			`"f:spec":{"f:firmware":{".":{},"f:channel":{},"f:version":{}},"f:model":{},"f:owner":{},"f:zone":{}}}`),
		entry("fleet-agent", "status", seen, `{"f:status":{"f:lastSeenTime":{},"f:message":{},"f:observedGeneration":{},"f:phase":{}}}`),
	}
}

func uid(random *rand.Rand) string {
	d := digits(random, 32)
	return strings.Join([]string{d[:8], d[8:12], d[12:16], d[16:20], d[20:]}, "-")
}

// digits returns n hexadecimal ones.
func digits(random *rand.Rand, n int) string {
	raw := make([]byte, (n+1)/2)
	for i := range raw {
		raw[i] = byte(random.UintN(256))
	}
	return hex.EncodeToString(raw)[:n]
}

// text returns n bytes of words.
func text(random *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(words[random.IntN(len(words))])
		b.WriteByte(' ')
	}
	return b.String()[:n]
}
