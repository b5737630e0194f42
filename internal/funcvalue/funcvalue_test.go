// SPDX-License-Identifier: Apache-2.0

package funcvalue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/internal/funcvalue"
)

func plain() string { return "plain" }

//go:noinline
func closure() func() string { return func() string { return "closure" } }

// A function that is inlined has a closure for each place where it is.
//
//go:noinline
func capturing(s string) func() string { return func() string { return s } }

type receiver struct{ s string }

func (r receiver) method() string { return r.s }

func TestOf(t *testing.T) {
	require.Equal(t, funcvalue.Of(plain), funcvalue.Of(plain))
	require.NotEqual(t, funcvalue.Of(plain), funcvalue.Of(closure()))
	require.Equal(t, funcvalue.Of(closure()), funcvalue.Of(closure()), "it captures nothing")
	one := capturing("one")
	copied := one
	require.Equal(t, funcvalue.Of(one), funcvalue.Of(copied))
	require.NotEqual(t, funcvalue.Of(one), funcvalue.Of(capturing("one")))
	require.NotEqual(t, funcvalue.Of(receiver{"one"}.method), funcvalue.Of(receiver{"two"}.method))
	var none func()
	require.Zero(t, funcvalue.Of(none))
	require.Panics(t, func() { funcvalue.Of("text") })
}

func TestCode(t *testing.T) {
	require.Equal(t, funcvalue.Code(capturing("one")), funcvalue.Code(capturing("two")))
	require.NotEqual(t, funcvalue.Code(capturing("one")), funcvalue.Code(closure()))
	var none func()
	require.Zero(t, funcvalue.Code(none))
	require.Zero(t, funcvalue.Code(nil))
}
