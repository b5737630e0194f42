// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
)

// columns are the columns of `kubectl get devices`. Those of priority 1 require -o wide.
var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "The device's name, unique within its namespace."},
	{Name: "Zone", Type: "string", Description: "Where the device stands."},
	{Name: "Owner", Type: "string", Description: "The team that answers for the device."},
	{Name: "Model", Type: "string", Description: "The manufacturer's name for the hardware."},
	{Name: "Phase", Type: "string", Description: "The observed state in one word."},
	{Name: "Age", Type: "string", Description: "The time since the device was created."},
	{Name: "Firmware", Type: "string", Priority: 1, Description: "The firmware channel, and the pinned version if there is one."},
}

type tableConvertor struct {
	now func() time.Time
}

func (c tableConvertor) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{}
	if list, err := meta.ListAccessor(obj); err == nil {
		table.ResourceVersion = list.GetResourceVersion()
		table.Continue = list.GetContinue()
		table.RemainingItemCount = list.GetRemainingItemCount()
	} else if single, err := meta.CommonAccessor(obj); err == nil {
		table.ResourceVersion = single.GetResourceVersion()
	}
	if opts, ok := options.(*metav1.TableOptions); !ok || !opts.NoHeaders {
		table.ColumnDefinitions = columns
	}
	var err error
	table.Rows, err = metatable.MetaToTableRow(obj, c.cells)
	return table, err
}

func (c tableConvertor) cells(obj runtime.Object, _ metav1.Object, name, _ string) ([]any, error) {
	device, ok := obj.(*fleet.Device)
	if !ok {
		return nil, fmt.Errorf("%T is not a device", obj)
	}
	firmware := string(device.Spec.Firmware.Channel)
	if version := device.Spec.Firmware.Version; version != "" {
		firmware += " " + version
	}
	age := "<unknown>"
	if created := device.CreationTimestamp; !created.IsZero() {
		age = duration.HumanDuration(c.now().Sub(created.Time))
	}
	return []any{name, device.Spec.Zone, device.Spec.Owner, device.Spec.Model, string(device.Status.Phase), age, firmware}, nil
}
