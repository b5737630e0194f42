// SPDX-License-Identifier: Apache-2.0

package dashboards

import "fmt"

// source is the data source that a person chooses at the head of a dashboard.
var source = DatasourceRef{Type: "prometheus", UID: "${datasource}"}

const (
	columns     = 24
	panelHeight = 8
)

// query is one PromQL query and the name of its series. In the name, {{label}}
// stands for the value of a label.
type query struct {
	expr, legend string
}

// panel is a panel to be placed: one of queries over time, unless it says more.
type panel struct {
	title string
	// about is what the panel shows, what is normal, and what to do otherwise.
	about   string
	unit    string // a unit of Grafana: s, bytes, ops, short, percentunit
	width   int    // in columns; 0: 8
	queries []query
	stacked bool
	// warn, unless 0, is the value from which on a value is to be looked at.
	warn float64
	// words makes the panel one of current values, which are shown as words.
	words map[string]Word
	// text makes it a panel of text, in Markdown.
	text string
}

// row is a heading and the panels below it.
type row struct {
	title  string
	panels []panel
}

// place lays rows out from the top, panels from left to right, and numbers all of
// them.
func place(rows []row) []Panel {
	var out []Panel
	y := 0
	for _, r := range rows {
		collapsed := false
		out = append(out, Panel{
			ID: len(out) + 1, Type: "row", Title: r.title, Collapsed: &collapsed, Panels: &[]Panel{},
			GridPos: GridPos{H: 1, W: columns, Y: y},
		})
		y++
		x := 0
		for _, p := range r.panels {
			width := p.width
			if width == 0 {
				width = 8
			}
			if x+width > columns {
				x, y = 0, y+panelHeight
			}
			made := p.make()
			made.ID, made.GridPos = len(out)+1, GridPos{H: panelHeight, W: width, X: x, Y: y}
			out = append(out, made)
			x += width
		}
		y += panelHeight
	}
	return out
}

// make returns the panel without its place.
func (p panel) make() Panel {
	if p.text != "" {
		return Panel{Type: "text", Title: p.title, Options: map[string]any{"mode": "markdown", "content": p.text}}
	}
	made := Panel{Type: "timeseries", Title: p.title, Description: p.about, Datasource: &source, FieldConfig: p.fields()}
	for i, q := range p.queries {
		made.Targets = append(made.Targets, Target{
			RefID: string(rune('A' + i)), Datasource: source, Expr: q.expr, LegendFormat: q.legend,
			EditorMode: "code", Range: p.words == nil, Instant: p.words != nil,
		})
	}
	if p.words != nil {
		made.Type = "stat"
		made.Options = map[string]any{
			"colorMode": "background", "graphMode": "none", "justifyMode": "auto", "orientation": "auto", "textMode": "value_and_name",
			"reduceOptions": map[string]any{"calcs": []string{"lastNotNull"}, "fields": "", "values": false},
		}
		return made
	}
	made.Options = map[string]any{
		"legend":  map[string]any{"calcs": []string{"lastNotNull", "max"}, "displayMode": "table", "placement": "bottom", "showLegend": true},
		"tooltip": map[string]any{"mode": "multi", "sort": "desc"},
	}
	return made
}

func (p panel) fields() *FieldConfig {
	zero := 0.0
	defaults := FieldDefaults{
		Unit: p.unit, Min: &zero, NoValue: "none",
		Color:      Color{Mode: "palette-classic"},
		Thresholds: Thresholds{Mode: "absolute", Steps: []Step{{Color: "green"}}},
		Mappings:   []Mapping{},
	}
	if p.words != nil {
		defaults.Min, defaults.Color.Mode = nil, "thresholds"
		defaults.Mappings = []Mapping{{Type: "value", Options: p.words}}
		return &FieldConfig{Defaults: defaults, Overrides: []any{}}
	}
	stacking, limits := "none", "off"
	if p.stacked {
		stacking = "normal"
	}
	if p.warn != 0 {
		limits = "dashed"
		defaults.Thresholds.Steps = append(defaults.Thresholds.Steps, Step{Color: "red", Value: &p.warn})
	}
	defaults.Custom = map[string]any{
		"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "never", "spanNulls": false,
		"stacking":        map[string]any{"mode": stacking, "group": "A"},
		"thresholdsStyle": map[string]any{"mode": limits},
	}
	return &FieldConfig{Defaults: defaults, Overrides: []any{}}
}

// tag is that of all our dashboards, by which they link to each other.
const tag = "watchcache"

// dashboard returns a page with the variables that all of them have.
func dashboard(name, title, description string, rows []row) Dashboard {
	return Dashboard{
		UID: "watchcache-" + name, Title: title, Description: description, Tags: []string{tag},
		Timezone: "browser", Editable: true, Tooltip: 1, Refresh: "30s", Schema: schemaVersion, Version: 1,
		Time: TimeRange{From: "now-1h", To: "now"},
		Links: []Link{{
			Title: "Watch cache", Type: "dashboards", Icon: "external link", Tags: []string{tag}, IncludeVars: true, KeepTime: true,
		}},
		Templating: Templating{List: append([]Variable{{
			Name: "datasource", Label: "Data source", Type: "datasource", Query: "prometheus", Refresh: 1,
		}}, variables()...)},
		Annotations: Notes{List: []Note{{
			Name: "Alerts of the watch cache", Datasource: source, Enable: true, IconColor: "red",
			Expr:        fmt.Sprintf(`ALERTS{alertname=~"%s.*",alertstate="firing",%s}`, alertPrefix, selection),
			TitleFormat: "{{alertname}}", TextFormat: "{{group}} {{resource}} on {{instance}}",
		}}},
		Panels: place(rows),
	}
}

// variables are the labels that a person narrows all panels by.
func variables() []Variable {
	var out []Variable
	for _, label := range identity {
		find := fmt.Sprintf("label_values(%s, %s)", anySeries, label)
		out = append(out, Variable{
			Name: label, Label: label, Type: "query", Datasource: &source, Definition: find,
			Query: VariableQuery{Query: find, RefID: "values"}, Refresh: 2, Sort: 1, Multi: true, IncludeAll: true, AllValue: ".*",
		})
	}
	return out
}
