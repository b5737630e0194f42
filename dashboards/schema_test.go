// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
)

// grafanaSchema is what Grafana documents of its dashboards, written by hand: it
// knows nothing of the types of this package.
func grafanaSchema(t *testing.T) *validate.SchemaValidator {
	text, err := os.ReadFile(filepath.Join("testdata", "dashboard.schema.json"))
	require.NoError(t, err)
	var schema spec.Schema
	require.NoError(t, json.Unmarshal(text, &schema))
	return validate.NewSchemaValidator(&schema, nil, "", strfmt.Default)
}

// The dashboards fit the schema that Grafana documents.
func TestDashboardsFitGrafanasSchema(t *testing.T) {
	schema := grafanaSchema(t)
	for _, d := range Dashboards() {
		text, err := jsonOf(d)
		require.NoError(t, err)
		var page any
		require.NoError(t, json.Unmarshal(text, &page))
		result := schema.Validate(page)
		require.Empty(t, result.Errors, "%s", d.UID)
	}
}

// The schema refuses what Grafana would not understand.
func TestSchemaRefuses(t *testing.T) {
	schema := grafanaSchema(t)
	text, err := jsonOf(overview())
	require.NoError(t, err)
	for before, after := range map[string]string{
		`"schemaVersion": 39`:   `"schemaVersion": "39"`,
		`"uid": "watchcache-`:   `"uid": "w `,
		`"type": "stat"`:        `"type": "singlestat"`,
		`"drawStyle": "line"`:   `"drawStyle": "curve"`,
		`"refId": "A"`:          `"refid": "A"`,
		`"w": 24`:               `"w": 25`,
		`"type": "dashboards"`:  `"type": "dashboard"`,
		`"mode": "absolute"`:    `"mode": "relative"`,
		`"displayMode": "tabl`:  `"displayMode": "grid`,
		`"graphTooltip": 1`:     `"graphTooltip": 7`,
		`"type": "datasource"`:  `"type": "source"`,
		`"iconColor": "red"`:    `"iconColour": "red"`,
		`"colorMode": "backgro`: `"colorMode": "foregro`,
	} {
		require.Contains(t, string(text), before)
		var page any
		require.NoError(t, json.Unmarshal([]byte(strings.Replace(string(text), before, after, 1)), &page))
		require.NotEmpty(t, schema.Validate(page).Errors, "%s", after)
	}
}

// Panels have different numbers, do not overlap, and say what they show; queries
// and variables use variables that exist.
func TestPanels(t *testing.T) {
	for _, d := range Dashboards() {
		numbers, taken := map[int]bool{}, map[[2]int]string{}
		for _, p := range d.Panels {
			require.False(t, numbers[p.ID], "%s, %s: number %d is taken", d.UID, p.Title, p.ID)
			numbers[p.ID] = true
			require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, columns, "%s, %s", d.UID, p.Title)
			for x := range p.GridPos.W {
				for y := range p.GridPos.H {
					place := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
					require.Empty(t, taken[place], "%s, %s: its place is taken", d.UID, p.Title)
					taken[place] = p.Title
				}
			}
			if p.Type == "timeseries" || p.Type == "stat" {
				require.NotEmpty(t, p.Description, "%s, %s", d.UID, p.Title)
				require.NotEmpty(t, p.Targets, "%s, %s", d.UID, p.Title)
			}
			for _, target := range p.Targets {
				for _, label := range identity {
					require.Contains(t, target.Expr, label+`=~"$`+label+`"`, "%s, %s", d.UID, p.Title)
				}
			}
		}
	}
}
