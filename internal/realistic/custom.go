// SPDX-License-Identifier: Apache-2.0

package realistic

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

var pipelineKind = schema.GroupVersionKind{Group: "ci.example.com", Version: "v1", Kind: "Pipeline"}

// CustomResources returns unstructured objects of about the given size, in bytes of stored JSON.
func CustomResources(bytes int) (Kind, error) {
	k := Kind{
		Name: fmt.Sprintf("%d-KB unstructured object", bytes/1000), Resource: schema.GroupResource{Group: pipelineKind.Group, Resource: "pipelines"},
		Codec: unstructured.UnstructuredJSONScheme, Attrs: storage.DefaultNamespaceScopedAttr,
		New: func() runtime.Object {
			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(pipelineKind)
			return u
		},
		NewList: func() runtime.Object {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(pipelineKind.GroupVersion().WithKind("PipelineList"))
			return list
		},
		Update: func(object runtime.Object, n int) { updatePipeline(object.(*unstructured.Unstructured), n) },
	}
	size := func(steps int) (int, error) {
		encoded, err := json.Marshal(pipeline(0, steps).Object)
		return len(encoded), err
	}
	none, err := size(0)
	if err != nil {
		return k, err
	}
	one, err := size(1)
	if err != nil {
		return k, err
	}
	// Later steps are larger than the first, so start the search a little lower.
	for steps := max(0, (bytes-none)/(one-none)*9/10); ; steps++ {
		n, err := size(steps)
		if err != nil || n >= bytes {
			k.Make = func(i int) runtime.Object { return pipeline(i, steps) }
			return k, err
		}
	}
}

// pipeline returns an object with the given number of steps and a controller's status.
func pipeline(i, steps int) *unstructured.Unstructured {
	owner := fmt.Sprintf("project-%03d", i/perOwner)
	at := stampOf(i).UTC().Format("2006-01-02T15:04:05Z")
	var list []any
	var specFields strings.Builder
	for s := range steps {
		name := fmt.Sprintf("step-%02d", s)
		list = append(list, map[string]any{
			"name": name, "image": "registry.example/ci/" + name + ":1.24.3", "retries": int64(s % 5), "timeoutSeconds": int64(3600),
			"args": []any{"--project=" + owner, "--verbose", "--out", "/tmp/result"}, "privileged": false,
			"env":       []any{map[string]any{"name": "BRANCH", "value": "main"}, map[string]any{"name": "RUN", "value": fmt.Sprint(i)}},
			"resources": map[string]any{"requests": map[string]any{"cpu": "100m", "memory": "128Mi"}},
		})
		fmt.Fprintf(&specFields, `,"k:{\"name\":\"%s\"}":{".":{},"f:args":{},"f:env":{},"f:image":{},"f:name":{},"f:resources":{}}`, name)
	}
	var conditions []any
	for _, typ := range []string{"Ready", "Synced"} {
		conditions = append(conditions, map[string]any{
			"type": typ, "status": "True", "reason": "AsExpected", "lastTransitionTime": at, "observedGeneration": int64(1),
		})
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": pipelineKind.GroupVersion().String(), "kind": pipelineKind.Kind,
		"metadata": map[string]any{
			"name": fmt.Sprintf("%s-run-%05d", owner, i), "namespace": fmt.Sprintf("team-%02d", i/perNamespace), "uid": uid(uint64(i) + 1<<38),
			"creationTimestamp": at, "generation": int64(1),
			"labels": map[string]any{"project": owner, "team": fmt.Sprintf("team-%02d", i/perNamespace)},
			"managedFields": []any{
				managerOf("pipelinectl", "Apply", at, map[string]any{"f:spec": fieldsOf(`{"f:steps":{".":{}` + specFields.String() + `}}`)}),
				managerOf("pipeline-controller", "Update", at, map[string]any{"f:status": fieldsOf(
					`{"f:phase":{},"f:conditions":{".":{},"k:{\"type\":\"Ready\"}":{".":{},"f:status":{}},"k:{\"type\":\"Synced\"}":{".":{},"f:status":{}}}}`)}),
			},
		},
		"spec":   map[string]any{"steps": list, "schedule": "0 3 * * *", "suspend": false},
		"status": map[string]any{"phase": "Succeeded", "conditions": conditions, "runs": int64(i)},
	}}
}

func managerOf(name, operation, at string, fields map[string]any) map[string]any {
	return map[string]any{
		"manager": name, "operation": operation, "apiVersion": pipelineKind.GroupVersion().String(), "time": at,
		"fieldsType": "FieldsV1", "fieldsV1": fields,
	}
}

func fieldsOf(text string) map[string]any {
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		panic(fmt.Sprintf("managed fields %s: %v", text, err))
	}
	return out
}

// updatePipeline reports a new status, as a controller does.
func updatePipeline(u *unstructured.Unstructured, n int) {
	status := u.Object["status"].(map[string]any)
	status["phase"] = []string{"Succeeded", "Running"}[n%2]
	ready := status["conditions"].([]any)[0].(map[string]any)
	ready["status"] = []string{"True", "False"}[n%2]
	ready["lastTransitionTime"] = stampOf(100_000 + n).UTC().Format("2006-01-02T15:04:05Z")
	managers := u.Object["metadata"].(map[string]any)["managedFields"].([]any)
	managers[1].(map[string]any)["time"] = ready["lastTransitionTime"]
}
