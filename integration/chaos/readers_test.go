// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"maps"
	"math/rand/v2"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/internal/judge"
)

// readKind is one way to read.
type readKind struct {
	name string
	read func(r *reader, ctx context.Context) error
}

var readKinds = []readKind{
	{"GET, consistent", (*reader).getConsistent},
	{"LIST, consistent", (*reader).listConsistent},
	{"LIST, consistent, selected", (*reader).listSelected},
	{"LIST, consistent, in pages", (*reader).listPages},
	{"LIST, not older than a write", (*reader).listNotOlder},
	{"LIST, exactly at a version", (*reader).listExact},
	{"GET and LIST at 0", (*reader).readAny},
}

// reader reads in one way from one server, one request after the other.
type reader struct {
	clients   *clients
	id        int
	name      string
	client    *versioned.Clientset
	random    *rand.Rand
	kind      readKind
	selection int
	n         int
	// of readAny: what it has seen, of the whole and of each key.
	last  int64
	items map[string]int64
}

func (r *reader) run(ctx context.Context) {
	r.items = map[string]int64{}
	every(ctx, readInterval, func() {
		bounded, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		r.n++
		if err := r.kind.read(r, bounded); err != nil && ctx.Err() == nil {
			r.clients.counts.unread.Add(1)
			if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) {
				r.clients.noteOdd(judge.State, "%s: %v", r.name, err)
			}
		}
	})
}

// list lists a selection and notes the answer.
func (r *reader) list(ctx context.Context, s judge.Selection, options metav1.ListOptions, fresh bool, least int64) (judge.Read, error) {
	answer := judge.Read{Kind: r.name, Begun: time.Now(), Fresh: fresh, Least: least, Selection: s}
	if s.Labels != nil {
		options.LabelSelector = s.Labels.String()
	}
	if s.Fields != nil {
		options.FieldSelector = s.Fields.String()
	}
	list, err := r.client.FleetV1().Devices(s.Namespace).List(ctx, options)
	if err != nil {
		return answer, err
	}
	answer.RV, answer.Items = judge.Version(list.ResourceVersion), judge.ItemsOf(list)
	for list.Continue != "" {
		options.Continue, options.ResourceVersion, options.ResourceVersionMatch = list.Continue, "", ""
		if list, err = r.client.FleetV1().Devices(s.Namespace).List(ctx, options); err != nil {
			return answer, err
		}
		if rv := judge.Version(list.ResourceVersion); rv != answer.RV {
			r.clients.noteOdd(judge.State, "%s: a page is of %d, the first one of %d", r.name, rv, answer.RV)
		}
		maps.Copy(answer.Items, judge.ItemsOf(list))
	}
	r.clients.noteRead(answer)
	return answer, nil
}

func (r *reader) getConsistent(ctx context.Context) error {
	i := r.random.IntN(keys)
	op := judge.Op{Client: r.id, Verb: judge.Get, Key: keyOf(i), Call: r.clients.now()}
	answer := judge.Read{Kind: r.name, Begun: time.Now(), Fresh: true, Key: op.Key}
	device, err := r.client.FleetV1().Devices(namespaceOf(i)).Get(ctx, nameOf(i), metav1.GetOptions{})
	op.Return, op.Outcome = r.clients.now(), outcomeOf(err)
	switch op.Outcome {
	case judge.OK:
		item := judge.ItemOf(device)
		op.RV, op.Content = item.RV, item.Content
		answer.RV, answer.Items = item.RV, map[string]judge.Item{op.Key: item}
		r.clients.known[i].Store(item.RV)
	case judge.NotFound:
	case judge.Exists, judge.Conflict, judge.Unanswered:
		return err
	}
	r.clients.noteOps(op)
	r.clients.noteRead(answer)
	return nil
}

// listConsistent says of every key what was there.
func (r *reader) listConsistent(ctx context.Context) error {
	return r.linear(ctx, metav1.ListOptions{})
}

// listPages is a consistent list of several requests, all of them of the version
// of the first.
func (r *reader) listPages(ctx context.Context) error {
	return r.linear(ctx, metav1.ListOptions{Limit: pageSize})
}

func (r *reader) linear(ctx context.Context, options metav1.ListOptions) error {
	call := r.clients.now()
	answer, err := r.list(ctx, judge.Selection{}, options, true, 0)
	if err != nil {
		return err
	}
	ops := make([]judge.Op, keys)
	for i := range ops {
		ops[i] = judge.Op{Client: r.id, Verb: judge.Get, Key: keyOf(i), Call: call, Return: r.clients.now(), Outcome: judge.NotFound}
		if item, found := answer.Items[keyOf(i)]; found {
			ops[i].Outcome, ops[i].RV, ops[i].Content = judge.OK, item.RV, item.Content
		}
	}
	r.clients.noteOps(ops...)
	return nil
}

func (r *reader) listSelected(ctx context.Context) error {
	_, err := r.list(ctx, selectionOf(r.n), metav1.ListOptions{}, true, 0)
	return err
}

func (r *reader) listNotOlder(ctx context.Context) error {
	least := r.clients.reached.Load()
	_, err := r.list(ctx, selectionOf(r.n), metav1.ListOptions{ResourceVersion: strconv.FormatInt(least, 10)}, false, least)
	return err
}

// listExact asks for a version that a writer was told a moment ago.
func (r *reader) listExact(ctx context.Context) error {
	at := r.clients.reached.Load()
	if at == 0 {
		return nil
	}
	answer, err := r.list(ctx, selectionOf(r.n), metav1.ListOptions{
		ResourceVersion: strconv.FormatInt(at, 10), ResourceVersionMatch: metav1.ResourceVersionMatchExact,
	}, false, at)
	if err == nil && answer.RV != at {
		r.clients.noteOdd(judge.State, "%s: asked for %d, got %d", r.name, at, answer.RV)
	}
	return err
}

// readAny reads at whatever version the server has, which must not go back: a list,
// then an object.
func (r *reader) readAny(ctx context.Context) error {
	answer, err := r.list(ctx, judge.Selection{}, metav1.ListOptions{ResourceVersion: "0"}, false, r.last)
	if err != nil {
		return err
	}
	r.last = answer.RV
	for key, item := range answer.Items {
		r.items[key] = max(r.items[key], item.RV)
	}
	i := r.random.IntN(keys)
	one := judge.Read{Kind: r.name, Begun: time.Now(), Key: keyOf(i), Least: r.items[keyOf(i)]}
	device, err := r.client.FleetV1().Devices(namespaceOf(i)).Get(ctx, nameOf(i), metav1.GetOptions{ResourceVersion: "0"})
	switch {
	case err == nil:
		item := judge.ItemOf(device)
		one.RV, one.Items = item.RV, map[string]judge.Item{one.Key: item}
		r.items[one.Key] = max(r.items[one.Key], item.RV)
	case !apierrors.IsNotFound(err):
		return err
	}
	r.clients.noteRead(one)
	return nil
}
