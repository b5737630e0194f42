"use strict";
(() => {
  const every = 2000, pageSize = 50;
  const main = document.getElementById("main"), fresh = document.getElementById("fresh"), crumb = document.getElementById("crumb");
  const state = { id: "", sort: "lag", reverse: false, offset: 0, values: false, paused: false };
  let view = null, timer = 0, asked = 0, total = 0;

  // DOM

  const svgTags = new Set(["svg", "rect", "title"]);
  function el(tag, attributes, ...children) {
    const node = tag === "title" || !svgTags.has(tag) ? document.createElement(tag) : document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children);
    return node;
  }
  // put changes a text only where it differs, so that a selection survives.
  function put(node, text) { if (node.textContent !== text) node.textContent = text; }
  function toggle(node, name, value) {
    if (value == null || value === false) node.removeAttribute(name); else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
  }

  // Numbers

  const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  const count = n => grouped.format(n || 0);
  function bytes(n) {
    for (const unit of ["B", "KiB", "MiB", "GiB"]) {
      if (n < 1024 || unit === "GiB") return (unit === "B" || n >= 100 ? Math.round(n) : n.toFixed(1)) + " " + unit;
      n /= 1024;
    }
  }
  function time(s) {
    if (s == null) return "–";
    if (s < 10) return s.toFixed(1) + " s";
    if (s < 120) return Math.round(s) + " s";
    if (s < 7200) return Math.round(s / 60) + " min";
    if (s < 172800) return Math.round(s / 3600) + " h";
    return Math.round(s / 86400) + " d";
  }
  const since = (at, now) => at ? time(Math.max(0, (Date.parse(now) - Date.parse(at)) / 1000)) : "–";
  const clock = at => new Date(at).toLocaleTimeString("en-GB");

  // Parts

  // table keeps its rows by key and changes only what differs. A column has a
  // title, a function that fills a cell, and perhaps a name to sort by.
  function table(label, columns, key, empty, onsort) {
    const heads = columns.map(c => el("th", { scope: "col", class: c.number && "n" },
      onsort && c.sort ? el("button", { type: "button", "data-sort": c.sort, onclick: () => onsort(c) }, c.title) : c.title));
    const body = el("tbody"), none = el("p", { class: "empty", hidden: true }, empty);
    const shown = el("table", { "aria-label": label }, el("thead", null, el("tr", null, ...heads)), body);
    const rows = new Map();
    return {
      node: el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, shown, none),
      fill(items, extra) {
        const keep = new Set();
        items.forEach((item, i) => {
          const id = String(key(item, i));
          keep.add(id);
          let row = rows.get(id);
          if (!row) rows.set(id, row = el("tr", { tabindex: "-1", "data-key": id }, ...columns.map(c => el("td", { class: [c.number && "n", c.class].filter(Boolean).join(" ") }))));
          columns.forEach((c, at) => c.fill(row.cells[at], item, extra));
          if (body.rows[i] !== row) body.insertBefore(row, body.rows[i] || null);
        });
        for (const [id, row] of rows) if (!keep.has(id)) { row.remove(); rows.delete(id); }
        none.hidden = items.length > 0;
        shown.hidden = items.length === 0;
      },
      mark(name, reverse) {
        columns.forEach((c, at) => toggle(heads[at], "aria-sort", c.sort === name && ((Boolean(c.ascending) !== reverse) ? "ascending" : "descending")));
      },
    };
  }
  const text = (title, of, more) => ({ title, fill: (cell, item, extra) => put(cell, of(item, extra)), ...more });
  const number = (title, of, more) => text(title, of, { number: true, ...more });
  function long(title, of, more) {
    return { title, class: "wide", fill(cell, item) { const s = of(item) || "–"; put(cell, s); toggle(cell, "title", s); }, ...more };
  }
  const stateCell = (title, more) => ({ title, ...more, fill(cell, item) {
    if (!cell.firstChild) cell.append(el("span"));
    toggle(cell.firstChild, "class", "state " + item.state.replace(" ", "-"));
    put(cell.firstChild, item.state);
  } });
  const selection = s => [s.key || s.scope, s.labels, s.fields].filter(Boolean).join("  ");

  function facts(names) {
    const cells = names.map(() => [el("span"), el("small")]);
    return {
      node: el("dl", { class: "facts" }, ...names.map((name, i) => el("div", null, el("dt", null, name), el("dd", null, ...cells[i])))),
      fill(values) { values.forEach(([value, note], i) => { put(cells[i][0], value); put(cells[i][1], note || " "); }); },
    };
  }

  // Views

  function overview() {
    put(crumb, "");
    const caches = table("Caches", [
      { title: "cache", fill(cell, c) {
        if (!cell.firstChild) cell.append(el("a", { href: "#/" + encodeURIComponent(c.id) }, c.id));
      } },
      stateCell("state"),
      number("objects", c => count(c.holds.objects)),
      number("memory", c => bytes(c.holds.objectBytes + c.holds.windowBytes + c.holds.encodingBytes)),
      number("watchers", c => count(c.watchers.total)),
      number("not live", c => count(c.watchers.parked + c.watchers.starting)),
      number("worst lag", c => c.watchers.worstLagEvents ? count(c.watchers.worstLagEvents) + " events" : "–"),
      number("behind", c => c.watchers.worstLagEvents ? time(c.watchers.worstLagSeconds) : "–"),
      long("slowest client", c => { const w = c.watchers.items[0]; return w && (w.lagEvents || w.queued) ? [w.user, w.userAgent].filter(Boolean).join(" · ") || "in process" : ""; }),
      number("storage heard of", c => c.freshness.silenceSeconds == null ? "–" : time(c.freshness.silenceSeconds) + " ago"),
      number("resourceVersion", c => c.freshness.resourceVersion || "–"),
    ], c => c.id, "This server has no watch caches: it stores no resource that is cached.");
    const sums = facts(["caches", "watchers", "worst lag", "memory"]);
    main.replaceChildren(sums.node, el("h2", null, "Caches"), caches.node);
    return { query: "&limit=1", fill(report) {
      const all = report.caches, sum = of => all.reduce((n, c) => n + of(c), 0);
      const worst = all.reduce((a, c) => !a || c.watchers.worstLagEvents > a.watchers.worstLagEvents ? c : a, null);
      const judged = by => sum(c => Object.values(c.counts[by] || {}).reduce((a, b) => a + b, 0));
      const shadow = all.some(c => c.shadow) && "in shadow, " + count(judged("shadowDiffered")) + " of " + count(judged("shadowCompared")) + " comparisons differed";
      const asleep = all.filter(c => c.state === "asleep").length, bad = all.filter(c => ["paused", "lost", "not ready"].includes(c.state)).length;
      sums.fill([
        [count(all.length), [asleep && count(asleep) + " asleep", bad ? count(bad) + " not ready, paused or lost" : "all can serve", shadow].filter(Boolean).join(", ")],
        [count(sum(c => c.watchers.total)), count(sum(c => c.watchers.parked)) + " parked, " + count(sum(c => c.watchers.starting)) + " starting"],
        worst && worst.watchers.worstLagEvents ? [count(worst.watchers.worstLagEvents) + " events", time(worst.watchers.worstLagSeconds) + " in " + worst.id] : ["none", "all watchers are live"],
        [bytes(sum(c => c.holds.objectBytes + c.holds.windowBytes + c.holds.encodingBytes)), count(sum(c => c.holds.objects)) + " objects"],
      ]);
      caches.fill(all);
    } };
  }

  const watcherColumns = [
    long("user", w => w.user || "in process", { sort: "user", ascending: true }),
    long("user agent", w => w.userAgent, { sort: "userAgent", ascending: true }),
    text("address", w => w.address || "–", { sort: "address", ascending: true }),
    long("selection", w => selection(w.selection)),
    stateCell("state", { sort: "state" }),
    number("lag", w => w.lagEvents ? count(w.lagEvents) : "0", { sort: "lag" }),
    number("behind", w => w.lagEvents ? time(w.lagSeconds) : "–"),
    { title: "channel", number: true, sort: "queued", fill(cell, w) {
      if (!cell.firstChild) cell.append(el("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, el("rect", { x: 0, y: 0, height: 10, width: 0 })), el("span"));
      toggle(cell.firstChild.firstChild, "width", String(w.capacity ? 100 * w.queued / w.capacity : 0));
      put(cell.lastChild, w.queued + "/" + w.capacity);
    } },
    number("delivered", w => count(w.delivered), { sort: "delivered" }),
    number("held", w => bytes(w.heldBytes), { sort: "bytes" }),
    number("age", w => time(w.ageSeconds), { sort: "age" }),
  ];

  function detail(id) {
    put(crumb, id);
    const sums = facts(["state", "resourceVersion", "storage heard of", "objects", "memory", "watchers"]);
    const watcherNote = el("small"), endedNote = el("small", null, "the latest first");
    const watchers = table("Watchers", watcherColumns, w => w.id, "No watch is open.", c => {
      state.reverse = state.sort === c.sort && !state.reverse;
      state.sort = c.sort; state.offset = 0;
      poll();
    });
    const previous = el("button", { type: "button", onclick: () => page(-1) }, "Previous"), next = el("button", { type: "button", onclick: () => page(1) }, "Next");
    const place = el("span"), values = el("input", { type: "checkbox", id: "values", onchange: () => { state.values = values.checked; poll(); } }), refused = el("span");
    values.checked = state.values;
    const ended = table("Ended watches", [
      text("ended", (w, now) => since(w.ended, now) + " ago"), text("reason", w => w.reason),
      long("user", w => w.user || "in process"), long("user agent", w => w.userAgent), text("address", w => w.address || "–"),
      long("selection", w => selection(w.selection)), number("lag", w => count(w.lagEvents)), number("delivered", w => count(w.delivered)), number("lasted", w => time(w.ageSeconds)),
    ], w => w.id + w.ended, "No watch has ended since the cache was last awake.");
    const reads = table("Reads by decision", [
      text("verb", r => r.verb), text("answered", r => r.decision), number("reads", r => count(r.n)), number("share", r => (100 * r.n / r.of).toFixed(1) + " %"),
    ], r => r.verb + " " + r.decision, "No GET or LIST has come since the cache was last awake.");
    const errors = table("Last errors", [
      text("last", (e, now) => since(e.time, now) + " ago"), number("times", e => count(e.times)), text("what happened", e => e.message ? e.summary + ": " + e.message : e.summary, { class: "text" }),
    ], e => e.summary + e.message, "Nothing has gone wrong.");
    const notice = el("p", { class: "notice", hidden: true, role: "status" });
    main.replaceChildren(notice, sums.node,
      el("h2", null, "Watchers", watcherNote), watchers.node,
      el("div", { class: "pager" }, previous, next, place, el("label", null, values, " names and values"), refused),
      el("h2", null, "Reads by decision"), reads.node,
      el("h2", null, "Ended watches", endedNote), ended.node,
      el("h2", null, "Last errors"), errors.node);
    return { get query() {
      return "&resource=" + encodeURIComponent(id) + "&limit=" + pageSize + "&offset=" + state.offset + "&sort=" + (state.reverse ? "-" : "") + state.sort + (state.values ? "&values=true" : "");
    }, fill(report) {
      const c = report.caches[0], now = report.time, w = c.watchers;
      total = w.total;
      notice.hidden = !c.reason;
      put(notice, c.reason || "");
      sums.fill([
        [c.state, c.since ? "for " + since(c.since, now) : ""],
        [c.freshness.resourceVersion || "–", c.freshness.oldestResourceVersion ? "resumes from " + c.freshness.oldestResourceVersion : ""],
        [c.freshness.silenceSeconds == null ? "–" : time(c.freshness.silenceSeconds) + " ago", c.freshness.storageResourceVersion ? "at " + c.freshness.storageResourceVersion + ", " + time(c.freshness.storageAgeSeconds) + " ago" : "event, progress or answer"],
        [count(c.holds.objects), bytes(c.holds.objectBytes) + (c.holds.adaptiveIndexes ? ", indexed for " + c.holds.adaptiveIndexes.join(", ") : "")],
        [bytes(c.holds.objectBytes + c.holds.windowBytes + c.holds.encodingBytes), "window " + bytes(c.holds.windowBytes) + " (" + count(c.window.events) + " events in " + time(c.window.spanSeconds) + "), encodings " + bytes(c.holds.encodingBytes)],
        [count(w.total), count(w.parked) + " parked, " + count(w.starting) + " starting"],
      ]);
      put(watcherNote, w.worstLagEvents ? "the worst is " + count(w.worstLagEvents) + " events and " + time(w.worstLagSeconds) + " behind" : w.total ? "all are live" : "");
      watchers.mark(state.sort, state.reverse);
      watchers.fill(w.items, now);
      put(place, w.items.length ? count(state.offset + 1) + " to " + count(state.offset + w.items.length) + " of " + count(w.total) : "");
      previous.disabled = state.offset === 0;
      next.disabled = state.offset + pageSize >= w.total;
      put(refused, c.values === "forbidden" ? "You may not list this resource, so they stay hidden." : "");
      const rows = [];
      for (const [verb, decisions] of Object.entries(c.counts.reads)) for (const [decision, n] of Object.entries(decisions)) rows.push({ verb, decision, n });
      const of = rows.reduce((n, r) => n + r.n, 0);
      reads.fill(rows.sort((a, b) => b.n - a.n || a.verb.localeCompare(b.verb)).map(r => ({ ...r, of })));
      ended.fill(c.ended || [], now);
      errors.fill(c.errors || [], now);
    } };
  }

  function page(by) {
    const to = state.offset + by * pageSize;
    if (to < 0 || to >= total) return;
    state.offset = to;
    poll();
  }

  // Updates

  // message returns the message of a Status of the API, or the text itself.
  function message(text) {
    try { text = JSON.parse(text).message || text; } catch { /* no JSON */ }
    return text.trim().slice(0, 200);
  }

  async function poll() {
    clearTimeout(timer);
    const mine = ++asked, shown = view;
    try {
      const response = await fetch(location.pathname + "?format=json" + shown.query, { headers: { Accept: "application/json" }, cache: "no-store" });
      if (mine !== asked) return;
      if (!response.ok) throw new Error("HTTP " + response.status + ": " + message(await response.text()));
      const report = await response.json();
      if (mine !== asked) return;
      shown.fill(report);
      put(fresh, state.paused ? "paused at " + clock(report.time) : "live, " + clock(report.time));
      fresh.className = "";
    } catch (e) {
      if (mine !== asked) return;
      put(fresh, "no answer: " + e.message);
      fresh.className = "bad";
    }
    if (!state.paused) timer = setTimeout(poll, every);
  }
  function route() {
    const id = location.hash.startsWith("#/") ? decodeURIComponent(location.hash.slice(2)) : "";
    if (view && id === state.id) return;
    Object.assign(state, { id, sort: "lag", reverse: false, offset: 0 });
    view = id ? detail(id) : overview();
    poll();
  }
  function move(by) {
    const row = document.activeElement.closest("tbody tr"), body = row ? row.parentNode : main.querySelector("tbody");
    if (!body || !body.rows.length) return;
    const at = row ? [...body.rows].indexOf(row) + by : by > 0 ? 0 : body.rows.length - 1;
    if (body.rows[at]) body.rows[at].focus();
  }
  const keys = {
    j: () => move(1), k: () => move(-1), n: () => state.id && page(1), p: () => state.id && page(-1),
    Escape: () => { location.hash = "#"; },
    " ": () => { state.paused = !state.paused; poll(); },
    Enter: () => { const link = document.activeElement.closest("tr") && document.activeElement.querySelector("a"); if (link) link.click(); },
  };
  addEventListener("keydown", e => {
    const tag = e.target.tagName;
    if (!keys[e.key] || e.ctrlKey || e.metaKey || e.altKey || ((e.key === " " || e.key === "Enter") && ["BUTTON", "A", "INPUT"].includes(tag))) return;
    if (e.key !== "Enter") e.preventDefault();
    keys[e.key]();
  });
  addEventListener("hashchange", route);
  route();
})();
