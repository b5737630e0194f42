// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// probe has fields as programs have them.
type probe struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	Seen     time.Time
	Until    *time.Time
	Address  netip.Addr
	URL      *url.URL
	Failure  error
	Any      any
	Total    *big.Int
	Size     resource.Quantity
	Selector labels.Selector
	Ranges   map[netip.Prefix]time.Time
	List     []string
	Grade    grade
	Mixed    mixed
}

// grade ignores case.
type grade struct{ Letter string }

func (g *grade) Equal(other *grade) bool { return (g.Letter[0]^other.Letter[0])&^('a'-'A') == 0 }

type mixed struct {
	At     time.Time
	hidden int
}

func (p *probe) DeepCopyObject() runtime.Object {
	out := *p
	p.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

func openProbes(t testing.TB) *Store {
	return open(t, func(c *Config) {
		c.KeyFunc = func(obj runtime.Object) (string, error) { return storage.NamespaceKeyFunc(poddata.Prefix, obj) }
		c.GetAttrsFunc = func(obj runtime.Object) (labels.Set, fields.Set, error) {
			return obj.(*probe).Labels, fields.Set{"metadata.name": obj.(*probe).Name}, nil
		}
		c.NewFunc = func() runtime.Object { return &probe{} }
	})
}

func newProbe(name string, when time.Time) *probe {
	total := new(big.Int).Sub(big.NewInt(1), big.NewInt(1)) // not deeply equal to big.NewInt(0)
	return &probe{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Seen: when, Until: &when, Address: netip.MustParseAddr("fe80::1%eth0"),
		URL: &url.URL{Host: "x", User: url.UserPassword("a", "b")}, Failure: fmt.Errorf("probe: %w", errors.New("refused")), Any: when,
		Total: total, Size: resource.MustParse("1Gi"), Selector: labels.SelectorFromSet(labels.Set{"a": "b"}),
		Ranges: map[netip.Prefix]time.Time{netip.MustParsePrefix("10.0.0.0/8"): when}, Grade: grade{"a"}, Mixed: mixed{At: when, hidden: 1},
	}
}

// Fields of any type are compared by their methods Equal, or as Go compares them.
func TestTypesAsTheyAre(t *testing.T) {
	s := openProbes(t)
	now := time.Now()
	put := func(p *probe) (changed bool) {
		before := version(t, s)
		require.NoError(t, s.Upsert(t.Context(), p))
		require.NoError(t, s.Replace(t.Context(), []runtime.Object{p}))
		return before != version(t, s)
	}
	require.True(t, put(newProbe("x", now)))
	same := newProbe("x", now.UTC().Round(0)) // the same time, not deeply equal
	same.Size, same.Grade, same.List = resource.MustParse("1024Mi"), grade{"A"}, []string{}
	require.False(t, put(same))
	for name, change := range map[string]func(*probe){
		"seen":     func(p *probe) { p.Seen = now.Add(1) },
		"until":    func(p *probe) { p.Until = nil },
		"address":  func(p *probe) { p.Address = netip.MustParseAddr("fe80::1%eth1") },
		"url":      func(p *probe) { p.URL.User = url.UserPassword("a", "c") },
		"failure":  func(p *probe) { p.Failure = fmt.Errorf("probe: %w", errors.New("timeout")) },
		"error":    func(p *probe) { p.Failure = nil },
		"any":      func(p *probe) { p.Any = func() {} },
		"total":    func(p *probe) { p.Total = big.NewInt(1) },
		"size":     func(p *probe) { p.Size = resource.MustParse("2Gi") },
		"selector": func(p *probe) { p.Selector = nil },
		"ranges":   func(p *probe) { p.Ranges[netip.MustParsePrefix("10.0.0.0/8")] = now.Add(1) },
		"prefix":   func(p *probe) { p.Ranges = map[netip.Prefix]time.Time{netip.MustParsePrefix("10.0.0.0/9"): now} },
		"list":     func(p *probe) { p.List = []string{""} },
		"grade":    func(p *probe) { p.Grade = grade{"b"} },
		"mixed":    func(p *probe) { p.Mixed.hidden = 2 },
	} {
		changed := newProbe("x", now)
		change(changed)
		require.True(t, put(changed), name)
		require.True(t, put(newProbe("x", now.UTC())), name)
	}
}

// A type with something that can't be compared is refused, not found out by a change.
type withCallback struct {
	probe
	Steps map[string][]*struct{ step struct{ run func() } }
}

func TestTypesThatAreRefused(t *testing.T) {
	c := config()
	c.NewFunc = func() runtime.Object { return &withCallback{} }
	_, err := New(c)
	require.ErrorContains(t, err, "withCallback.Steps.step.run is a func()")
}
