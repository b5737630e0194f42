// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/internal/judge"
)

// writer writes devices through one server. Several write the same ones.
type writer struct {
	clients *clients
	id      int
	client  *versioned.Clientset
	random  *rand.Rand
	n       int
}

func (w *writer) run(ctx context.Context) {
	every(ctx, writeInterval, func() {
		w.clients.gate.RLock()
		defer w.clients.gate.RUnlock()
		if ctx.Err() == nil {
			w.write(ctx)
		}
	})
}

// write makes one attempt.
func (w *writer) write(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	w.n++
	i := w.random.IntN(keys)
	op := judge.Op{Client: w.id, Key: keyOf(i), Content: fmt.Sprintf("write-%d-%d", w.id, w.n), Expect: w.clients.known[i].Load(), Call: w.clients.now()}
	switch draw := w.random.IntN(100); {
	case op.Expect == 0 || draw < 20:
		op.Verb = judge.Create
	case draw < 55:
		op.Verb = judge.Patch
	case draw < 80:
		op.Verb = judge.Update
	default:
		op.Verb, op.Content = judge.Delete, ""
	}
	device, err := w.send(ctx, i, op)
	op.Return, op.Outcome = w.clients.now(), outcomeOf(err)
	if op.Outcome == judge.OK && device != nil {
		op.RV = judge.Version(device.ResourceVersion)
		w.clients.known[i].Store(op.RV)
	}
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) {
		w.clients.noteOdd(judge.Linear, "%s of %s: %v", op.Verb, op.Key, err)
	}
	w.clients.noteWrite(op)
}

// send sends the request of an operation.
func (w *writer) send(ctx context.Context, i int, op judge.Op) (*fleetv1.Device, error) {
	devices := w.client.FleetV1().Devices(namespaceOf(i))
	flip, owner := flips[w.random.IntN(len(flips))], owners[w.random.IntN(len(owners))]
	device := &fleetv1.Device{
		ObjectMeta: metav1.ObjectMeta{Name: nameOf(i), Labels: map[string]string{"lane": laneOf(i), "flip": flip}},
		Spec:       fleetv1.DeviceSpec{Zone: "zone", Owner: owner, Model: op.Content},
	}
	rv := strconv.FormatInt(op.Expect, 10)
	switch op.Verb {
	case judge.Create:
		return devices.Create(ctx, device, metav1.CreateOptions{})
	case judge.Patch:
		patch := fmt.Sprintf(`{"metadata":{"labels":{"flip":%q}},"spec":{"model":%q,"owner":%q}}`, flip, op.Content, owner)
		return devices.Patch(ctx, nameOf(i), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	case judge.Update:
		device.ResourceVersion = rv
		return devices.Update(ctx, device, metav1.UpdateOptions{})
	case judge.Delete:
		return nil, devices.Delete(ctx, nameOf(i), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &rv}})
	case judge.Get, judge.Put:
	}
	return nil, fmt.Errorf("no writer sends %q", op.Verb)
}

// outcomeOf is what an answer says; whatever may have been applied is unanswered.
func outcomeOf(err error) judge.Outcome {
	switch {
	case err == nil:
		return judge.OK
	case apierrors.IsNotFound(err):
		return judge.NotFound
	case apierrors.IsAlreadyExists(err):
		return judge.Exists
	case apierrors.IsConflict(err):
		return judge.Conflict
	}
	return judge.Unanswered
}

// txnWriter writes several devices in one transaction, past all servers, so that
// several events share a revision.
type txnWriter struct {
	clients *clients
	id      int
	random  *rand.Rand
	n       int
}

func (w *txnWriter) run(ctx context.Context) {
	every(ctx, txnInterval, func() {
		w.clients.gate.RLock()
		defer w.clients.gate.RUnlock()
		if ctx.Err() == nil {
			w.write(ctx)
		}
	})
}

// write changes up to three devices that are there, or deletes them: all or none.
func (w *txnWriter) write(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	w.n++
	first, deletes := w.random.IntN(keys), w.random.IntN(5) == 0
	var ops []judge.Op
	var compares []clientv3.Cmp
	var then []clientv3.Op
	for i := first; i < first+3; i++ {
		op, at := judge.Op{Client: w.id, Verb: judge.Update, Key: keyOf(i % keys)}, registry+keyOf(i%keys)
		got, err := w.clients.run.direct.Get(ctx, at)
		if err != nil {
			return
		}
		if len(got.Kvs) == 0 {
			continue
		}
		op.Expect = got.Kvs[0].ModRevision
		compares = append(compares, clientv3.Compare(clientv3.ModRevision(at), "=", op.Expect))
		if deletes {
			op.Verb = judge.Delete
			then = append(then, clientv3.OpDelete(at))
		} else {
			op.Content = fmt.Sprintf("txn-%d-%d-%d", w.id, w.n, i)
			value, err := withModel(got.Kvs[0].Value, op.Content, flips[w.random.IntN(len(flips))])
			if err != nil {
				w.clients.noteOdd(judge.Linear, "%s: %v", op.Key, err)
				return
			}
			then = append(then, clientv3.OpPut(at, string(value)))
		}
		ops = append(ops, op)
	}
	if len(ops) == 0 {
		return
	}
	call := w.clients.now()
	response, err := w.clients.run.direct.Txn(ctx).If(compares...).Then(then...).Commit()
	if err == nil && !response.Succeeded {
		return // one of several has changed, and nothing says which
	}
	for _, op := range ops {
		op.Call, op.Return, op.Outcome = call, w.clients.now(), judge.Unanswered
		if err == nil {
			op.Outcome = judge.OK
			if !deletes {
				op.RV = response.Header.Revision
			}
		}
		w.clients.noteWrite(op)
	}
}

// withModel changes a stored device.
func withModel(stored []byte, model, flip string) ([]byte, error) {
	var device fleetv1.Device
	if err := json.Unmarshal(stored, &device); err != nil {
		return nil, err
	}
	device.Spec.Model = model
	if device.Labels != nil {
		device.Labels["flip"] = flip
	}
	return json.Marshal(&device)
}

// registry is where etcd has the devices; namespace and name follow.
const registry = "/registry/fleet.example.com/devices/"

// stored is a device as the servers store it.
func stored(key, model string, change func(*fleetv1.Device)) ([]byte, error) {
	device := &fleetv1.Device{TypeMeta: metav1.TypeMeta{Kind: "Device", APIVersion: fleetv1.SchemeGroupVersion.String()}}
	device.Namespace, device.Name = path.Split(key)
	device.Namespace, device.UID = strings.TrimSuffix(device.Namespace, "/"), types.UID(key)
	device.Spec = fleetv1.DeviceSpec{Zone: "zone", Owner: "nobody", Model: model, Firmware: fleetv1.Firmware{Channel: fleetv1.FirmwareStable}}
	device.Status.Phase = fleetv1.DevicePending
	change(device)
	return json.Marshal(device)
}

// touchAll writes every device, past all servers, so that every selection has an
// event to wait for.
func (c *clients) touchAll(ctx context.Context) error {
	for i := range 2 * keys {
		op := judge.Op{Client: -1, Verb: judge.Put, Key: keyOf(i % keys), Content: fmt.Sprintf("last-%d-%d", i, c.now()), Call: c.now()}
		value, err := stored(op.Key, op.Content, func(device *fleetv1.Device) {
			device.Labels = map[string]string{"lane": laneOf(i % keys), "flip": flips[1-i/keys]}
			device.Spec.Owner = owners[i%len(owners)]
		})
		if err != nil {
			return err
		}
		put, err := c.run.direct.Put(ctx, registry+op.Key, string(value))
		op.Return, op.Outcome = c.now(), judge.Unanswered
		if err == nil {
			op.Outcome, op.RV = judge.OK, put.Header.Revision
		}
		c.noteWrite(op)
		if err != nil {
			return err
		}
	}
	return nil
}
