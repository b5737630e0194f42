// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"encoding/json"
	"hash/fnv"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// Version reads a resourceVersion; -1, which no judge lets pass, if it is none.
func Version(rv string) int64 {
	n, err := strconv.ParseInt(rv, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// KeyOf is how this package names a device.
func KeyOf(d *fleetv1.Device) string { return d.Namespace + "/" + d.Name }

// ItemOf is what the judges compare of a device.
func ItemOf(d *fleetv1.Device) Item {
	bare := *d // what is changed below is not shared with d
	bare.TypeMeta, bare.ResourceVersion = metav1.TypeMeta{}, ""
	sum := fnv.New64a()
	if err := json.NewEncoder(sum).Encode(&bare); err != nil {
		return Item{RV: -1, Content: err.Error()}
	}
	return Item{RV: Version(d.ResourceVersion), Content: d.Spec.Model, Sum: sum.Sum64()}
}

// ItemsOf are the items of a list, by key.
func ItemsOf(list *fleetv1.DeviceList) map[string]Item {
	items := make(map[string]Item, len(list.Items))
	for i := range list.Items {
		items[KeyOf(&list.Items[i])] = ItemOf(&list.Items[i])
	}
	return items
}

// EventOf is what the judges compare of an event that has a device.
func EventOf(kind watch.EventType, d *fleetv1.Device) Event {
	if kind == watch.Bookmark {
		return Event{Kind: kind, RV: Version(d.ResourceVersion), Ends: d.Annotations[metav1.InitialEventsAnnotationKey] == "true"}
	}
	item := ItemOf(d)
	return Event{Kind: kind, Key: KeyOf(d), RV: item.RV, Content: item.Content, Sum: item.Sum}
}
