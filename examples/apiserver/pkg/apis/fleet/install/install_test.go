// SPDX-License-Identifier: Apache-2.0

package install

import (
	"math/rand"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apitestingfuzzer "k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/apitesting/roundtrip"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/fuzzer"
	v1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1beta1"
)

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, AddToScheme(scheme))
	return scheme
}

// TestRoundTrip sends random objects of every version through JSON and through the
// internal version, and wants back what it sent.
func TestRoundTrip(t *testing.T) {
	scheme := newScheme(t)
	codecs := serializer.NewCodecFactory(scheme)
	seed := rand.Int63()
	t.Logf("seed %d", seed)
	funcs := apitestingfuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, fuzzer.Funcs)
	filler := apitestingfuzzer.FuzzerFor(funcs, rand.NewSource(seed), codecs)
	roundtrip.RoundTripTypesWithoutProtobuf(t, scheme, codecs, filler, nil)
}

// TestConversionBetweenServedVersions goes from each served version to the other
// and back, by way of the internal one as the server does.
func TestConversionBetweenServedVersions(t *testing.T) {
	scheme := newScheme(t)
	codecs := serializer.NewCodecFactory(scheme)
	seed := rand.Int63()
	t.Logf("seed %d", seed)
	funcs := apitestingfuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, fuzzer.Funcs)
	filler := apitestingfuzzer.FuzzerFor(funcs, rand.NewSource(seed), codecs)

	through := func(in, internal, out runtime.Object) {
		require.NoError(t, scheme.Convert(in, internal, nil))
		require.NoError(t, scheme.Convert(internal, out, nil))
	}
	for range 100 {
		stable, old := &v1.Device{}, &v1beta1.Device{}
		filler.Fill(stable)
		filler.Fill(old)
		var asOld, oldAgain v1beta1.Device
		var asStable, stableAgain v1.Device
		through(stable.DeepCopy(), &fleet.Device{}, &asOld)
		through(asOld.DeepCopy(), &fleet.Device{}, &stableAgain)
		through(old.DeepCopy(), &fleet.Device{}, &asStable)
		through(asStable.DeepCopy(), &fleet.Device{}, &oldAgain)
		stable.TypeMeta, old.TypeMeta = metav1.TypeMeta{}, metav1.TypeMeta{}
		require.Equal(t, stable, &stableAgain)
		require.Equal(t, old, &oldAgain)
	}
}

func TestDefaults(t *testing.T) {
	codecs := serializer.NewCodecFactory(newScheme(t))
	for _, version := range []schema.GroupVersion{v1.SchemeGroupVersion, v1beta1.SchemeGroupVersion} {
		body := strings.NewReplacer("VERSION", version.String()).Replace(`{"apiVersion":"VERSION","kind":"Device","metadata":{"name":"a"}}`)
		obj, err := runtime.Decode(codecs.UniversalDecoder(fleet.SchemeGroupVersion), []byte(body))
		require.NoError(t, err, version)
		require.Equal(t, fleet.FirmwareStable, obj.(*fleet.Device).Spec.Firmware.Channel, version)
	}
}
