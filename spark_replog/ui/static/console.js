"use strict";
// Values from the store reach the page as text nodes only: never as markup, an address or a style.

const el = (tag, attributes, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else made.setAttribute(name, value === true ? (name.startsWith("aria-") ? "true" : "") : value);
  }
  made.append(...children.flat(9).filter((each) => each !== null && each !== undefined && each !== false)
    .map((each) => (each instanceof Node ? each : document.createTextNode(String(each)))));
  return made;
};
const svg = (tag, attributes, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

// -- words ------------------------------------------------------------------------------------
const count = (n) => (n === null || n === undefined ? "-" : Math.round(n).toLocaleString("en"));
const rate = (n) => (n >= 100 || n === 0 ? count(n) : n.toLocaleString("en", { maximumSignificantDigits: 3 }));
const bytes = (n) => {
  if (n === null || n === undefined) return "-";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (n >= 1024 && unit < 5) { n /= 1024; unit++; }
  return (unit === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)) + " " + units[unit];
};
const duration = (ms) => {
  if (ms === null || ms === undefined) return "-";
  let left = Math.floor(Math.max(0, ms) / 1000);
  const parts = [];
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]) {
    const n = Math.floor(left / size);
    left %= size;
    if (n || (unit === "s" && !parts.length)) parts.push(n + " " + unit);
  }
  return parts.slice(0, 2).join(" ");
};
const time = (ms) => {
  if (ms === null || ms === undefined) return "never";
  const at = new Date(ms);
  return Number.isNaN(at.getTime()) ? String(ms) + " ms" : at.toISOString().replace("T", " ").replace("Z", "");
};
const clock = (ms) => new Date(ms).toISOString().slice(11, 16);
const ago = (ms, now) => (ms === null ? "never" : duration(now - ms) + " ago");
const many = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
const LEVELS = { OK: "ok", ok: "ok", WARN: "warn", SLOW: "warn", "under-replicated": "warn", fenced: "warn" };
const pill = (text, word) => el("span", { class: "pill " + (LEVELS[word || text] || "bad") }, text);
const link = (page, params) => {
  const query = new URLSearchParams(Object.entries(params || {}).filter(([, v]) => v !== null && v !== undefined && v !== ""));
  return "#/" + page + (query.size ? "?" + query : "");
};
const a = (page, params, ...text) => el("a", { href: link(page, params) }, ...text);

// -- the page as it is becomes the page as it should be: focus, scroll and selection stay -------
const patch = (old, fresh) => {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || old.nodeType === 3) {
    if (old.nodeType !== 3 || fresh.nodeType !== 3) old.replaceWith(fresh);
    else if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const before = [...old.childNodes], after = [...fresh.childNodes];
  after.forEach((each, at) => (at < before.length ? patch(before[at], each) : old.append(each)));
  before.slice(after.length).forEach((each) => each.remove());
};

// -- parts --------------------------------------------------------------------------------------
const card = (title, aside, ...body) =>
  el("section", { class: "card" }, el("div", { class: "head" }, el("h2", {}, title), aside ? el("div", { class: "quiet" }, aside) : null), ...body);
const table = (columns, rows, nothing) => {
  if (!rows.length) return el("div", { class: "empty" }, nothing);
  const head = columns.map(([title, kind]) => el("th", { class: kind, scope: "col" }, title));
  const body = rows.map((cells) => el("tr", {}, cells.map((cell, at) => el("td", { class: columns[at][1] }, cell))));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
};
const pager = (data, page, params) => {
  if (data.total <= data.count && !data.first) return null;
  const to = (first, text) => (first === null ? el("span", {}, text) : a(page, { ...params, first: first || "" }, text));
  const last = Math.min(data.first + data.count, data.total);
  return el("div", { class: "pager" }, `${count(data.total && data.first + 1)} to ${count(last)} of ${count(data.total)}`,
    to(data.first ? Math.max(0, data.first - data.count) : null, "Earlier"), to(last < data.total ? last : null, "Later"));
};
const scale = (top) => {
  const power = 10 ** Math.floor(Math.log10(Math.max(top, 1e-9)));
  return [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= top) || 1;
};
const HEIGHT = 132, LEFT = 58, BOTTOM = 112, TOP = 10;
let WIDTH = 600; // of a plot, in pixels: its text keeps its size
const fit = () => { WIDTH = Math.max(260, (innerWidth > 900 ? main.clientWidth / 2 : main.clientWidth) - 50); };
const frame = (top, word, marks, title) => {
  const made = svg("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
  for (const part of [0, 0.5, 1]) {
    const y = BOTTOM - part * (BOTTOM - TOP);
    made.append(svg("line", { class: "axis", x1: LEFT, x2: WIDTH - 4, y1: y, y2: y }));
    made.append(svg("text", { x: LEFT - 6, y: y + 3.5, "text-anchor": "end" }, word(part * top)));
  }
  for (const [x, text, anchor] of marks) made.append(svg("text", { x, y: HEIGHT - 5, "text-anchor": anchor }, text));
  return made;
};
const bars = (minutes, at, word, title) => {
  const values = minutes.map((each) => each[at] / 60), top = scale(Math.max(...values, 0) || 1);
  const step = (WIDTH - 4 - LEFT) / minutes.length;
  const last = minutes.length - 1, mark = (n) => clock(minutes[n][0]);
  const marks = [...[0, 5, 10].map((n) => [LEFT + (n + 0.5) * step, mark(n), "middle"]), [WIDTH - 4, mark(last), "end"]];
  const made = frame(top, word, marks, title);
  values.forEach((value, n) => {
    const height = (value / top) * (BOTTOM - TOP);
    const bar = svg("rect", { class: "bar" + (n === values.length - 1 ? " now" : ""), x: LEFT + n * step + 2, y: BOTTOM - height, width: step - 4, height, rx: 2 });
    bar.append(svg("title", {}, `${clock(minutes[n][0])}: ${word(value)} a second`));
    made.append(bar);
  });
  return made;
};
const SPANS = [10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 345600, 604800, 1209600, 2592000];
const lines = (series, title) => {
  const points = series.flatMap((each) => each.points);
  const from = Math.min(...points.map((p) => p[0])), to = Math.max(...points.map((p) => p[0]), from + 1);
  const worst = Math.max(...points.map((p) => p[2])), top = SPANS.find((n) => n * 1000 >= worst) * 1000 || worst;
  const x = (ms) => LEFT + ((ms - from) / (to - from)) * (WIDTH - 4 - LEFT);
  const made = frame(top, duration, [[LEFT, clock(from), "start"], [WIDTH - 4, clock(to), "end"]], title);
  series.forEach((each, n) => made.append(svg("polyline", { class: "c" + (n + 1),
    points: each.points.map((p) => `${x(p[0]).toFixed(1)},${(BOTTOM - (p[2] / top) * (BOTTOM - TOP)).toFixed(1)}`).join(" ") })));
  return made;
};
const spark = (values) => {
  const top = Math.max(...values, 1);
  const made = svg("svg", { class: "spark", width: values.length * 5, height: 16, "aria-hidden": "true" });
  values.forEach((value, n) => { const h = (value / top) * 15; made.append(svg("rect", { x: n * 5, y: 16 - Math.max(h, 1), width: 4, height: Math.max(h, 1) })); });
  return made;
};
const readerTable = (items, nothing) => table(
  [["Verdict", "w"], ["Reader", "name"], ["State", "w"], ["Unread rows", "n"], ["Unread bytes", "n"], ["Time behind", "n"], ["Caught up in", "n"], ["Why", "name"]],
  items.map((each) => [pill(each.verdict), [a("reader", { kind: each.kind, name: each.reader }, each.reader), el("span", { class: "quiet" }, " " + each.kind)],
    each.state, count(each.lag), bytes(each.lagBytes), duration(each.lagMs), each.catchUpMs === null ? "-" : duration(each.catchUpMs), each.reason]), nothing);
const findingList = (items, nothing) => (items.length ? items.map((each) => el("div", { class: "finding" },
  el("div", {}, pill(each.level)), el("div", {}, each.detail, " ", el("span", { class: "quiet" }, each.fault)),
  each.others ? el("details", {}, el("summary", { class: "quiet" }, `and ${count(each.others)} more with the same remedy`), each.otherDetails.map((text) => el("div", {}, text))) : null,
  el("code", { class: "command" }, each.remedy)))
  : el("div", { class: "empty" }, nothing));
const CELLS = { l: "leader", f: "in sync", o: "out of sync", x: "without a leader" };
const evenly = (items, most) => {
  const number = Math.ceil(items.length / most), size = Math.ceil(items.length / number);
  return Array.from({ length: number }, (_, n) => items.slice(n * size, (n + 1) * size));
};
const placementBlocks = (data) => el("div", { class: "blocks" }, data.topics.flatMap(({ topic, partitions }) => evenly(partitions, Math.max(8, Math.min(64, Math.floor((main.clientWidth - 70) / 13)))).map((part) => [topic, part, partitions])).map(([topic, partitions, all]) => el("div", { class: "block" },
  a("topic", { name: topic }, topic, partitions.length < all.length ? ` ${partitions[0][0]} to ${partitions[partitions.length - 1][0]}` : ""),
  data.brokers.map((broker) => el("div", { class: "lane" }, el("i", {}, broker), el("div", { class: "cells" },
    partitions.map(([number, leader, replicas, inSync]) => {
      const kind = !replicas.includes(broker) ? "" : leader < 0 ? "x" : leader === broker ? "l" : inSync.includes(broker) ? "f" : "o";
      return el("span", { class: "cell " + kind, title: `${topic}-${number}, broker ${broker}: ${CELLS[kind] || "no copy"}` });
    })))))));
const legend = () => el("div", { class: "legend" }, Object.entries(CELLS).map(([kind, word]) => el("span", {}, el("span", { class: "cell " + kind }), word)));

// -- pages ----------------------------------------------------------------------------------------
const ask = async (name, params) => {
  const query = new URLSearchParams(Object.entries(params || {}).filter(([, v]) => v !== null && v !== undefined && v !== ""));
  const answer = await fetch(`/api/${name}?${query}`, { credentials: "same-origin" });
  const kind = answer.headers.get("content-type") || "";
  const found = kind.startsWith("application/json") ? await answer.json() : { error: String(answer.status), message: await answer.text() };
  if (!answer.ok) throw Object.assign(new Error(found.message), { code: found.error, status: answer.status });
  return found;
};

const overview = {
  load: async (params) => ({ ...(await ask("overview")), placement: await ask("placement", { first: params.first, count: 200 }) }),
  view: (d, params) => {
    const trouble = [[d.offline, "offline"], [d.underMinIsr, "under min ISR"], [d.underReplicated, "under-replicated"]].filter(([n]) => n);
    const tiles = [
      [`${d.brokers.filter((b) => ["ok", "fenced", "root-full"].includes(b.state)).length} of ${d.brokers.length}`, "roots serve"],
      [count(d.partitions), `partitions of ${many(d.topics, "topic")}`],
      [bytes(d.bytes), "in one copy"],
      [rate(d.rowsPerSecond["1m"]) + " /s", `rows, ${bytes(d.bytesPerSecond["1m"])}/s`],
      [ago(d.lastAppendMs, d.nowMs), "last write"],
      [d.worstLag ? duration(d.worstLag.ms) : "0 s", d.worstLag ? `behind: ${d.worstLag.group}` : `no lag; ${many(d.groups, "group")}`],
    ];
    return el("div", {},
      el("h1", {}, "Overview", pill(d.verdict), trouble.map(([n, word]) => el("span", { class: "quiet" }, `${count(n)} ${word}`)),
        Object.entries(d.verdicts).filter(([word]) => word !== "OK").map(([word, n]) => a("readers", {}, pill(`${many(n, "reader")} ${word}`, word)))),
      el("div", { class: "tiles" }, tiles.map(([value, word]) => el("div", { class: "tile" }, el("b", {}, value), el("span", { title: word }, word)))),
      d.findings.length ? card("Health", a("health", {}, many(d.findingCount, "finding")), findingList(d.findings, "")) : null,
      el("div", { class: "two" },
        card("Rows a second, by minute", "UTC", el("div", { class: "body" }, bars(d.minutes, 1, rate, "Rows appended a second, by minute"))),
        card("Time behind, by reader", d.lags.length ? el("div", { class: "legend" }, d.lags.map((each, n) => el("span", {}, el("span", { class: `dash c${n + 1}` }), each.name))) : null,
          d.lags.length ? el("div", { class: "body" }, lines(d.lags, "Time behind, by reader")) : el("div", { class: "empty" }, "Nobody was behind since this console began."))),
      card("Where partitions are", legend(), el("div", { class: "body" }, placementBlocks(d.placement)), pager(d.placement, "", params)),
      card("Brokers", null, table([["Broker", "w"], ["State", "w"], ["Journals", "w"], ["Leads", "n"], ["Assigned", "n"], ["Free", "n"], ["Rack", "w"], ["Root", "name mono"]],
        d.brokers.map((b) => [b.broker, pill(b.state), b.metadata ? "yes" : "no", count(b.leaders), bytes(b.assignedBytes), bytes(b.freeBytes), b.rack || "-", b.url]), "No brokers.")),
      d.gateways.length ? card("Gateways", null, table([["Gateway", "w"], ["State", "w"], ["Connections", "n"], ["Requests", "n"], ["Received", "n"], ["Sent", "n"], ["Rack", "w"], ["Address", "name mono"]],
        d.gateways.map((g) => [g.gateway, pill(g.state), count(g.connections), count(g.requests), bytes(g.receivedBytes), bytes(g.sentBytes), g.rack || "-", g.address]), "No gateways.")) : null,
      card("Groups and queries", d.readerCount > d.readers.length ? a("readers", {}, `all ${count(d.readerCount)}`) : null, readerTable(d.readers, "No groups or queries read this store. Add --checkpoint FOLDER to show queries.")));
  },
};

const topics = {
  once: (params) => {
    const box = el("input", { type: "search", value: params.q || "", placeholder: "Name holds", "aria-label": "Name holds" });
    box.addEventListener("input", () => { const q = box.value; setTimeout(() => { if (q === box.value) history.replaceState(null, "", link("topics", { sort: params.sort, q })), params.q = q, params.first = "", refresh(); }, 150); });
    return el("h1", {}, "Topics", box);
  },
  load: (params) => ask("topics", { q: params.q, sort: params.sort, first: params.first, count: 50 }),
  view: (d, params) => {
    const by = (sort, title) => el("a", { href: link("topics", { q: params.q, sort }), "aria-current": (params.sort || "name") === sort }, title);
    return card(many(d.total, "topic"), null, table(
      [[by("name", "Topic"), "name"], ["State", "w"], [by("partitions", "Partitions"), "n"], ["Copies", "n"], [by("rows", "Rows"), "n"], [by("bytes", "Bytes"), "n"], [by("rate", "Rows/s"), "n"], ["15 minutes", "w"], [by("lastAppendMs", "Last write"), "w"]],
      d.topics.map((t) => [a("topic", { name: t.topic }, t.topic), pill(t.offline ? "offline" : t.underMinIsr ? "under min ISR" : t.underReplicated ? "under-replicated" : "ok"),
        count(t.partitions), count(t.replicas), count(t.rows), bytes(t.bytes), rate(t.rowsPerSecond), spark(t.minutes), time(t.lastAppendMs).slice(0, 19)]), "No topic has such a name."), pager(d, "topics", params));
  },
};

const settingTable = (items) => el("div", { class: "stacked" }, table([["Setting", "name mono"], ["Value", "name mono"], ["Default", "name mono"], ["Kafka's", "name mono"], ["From", "w"], ["Effect", "name"]],
  items.map((s) => [s.key, s.value === null ? el("span", { class: "null" }, "not set") : s.source === "default" ? s.value : el("b", {}, s.value), s.default === null || s.default === undefined ? "-" : s.default,
    s.kafkaDefault === null || s.kafkaDefault === undefined ? "-" : s.kafkaDefault || "not set", s.source === "default" ? "default" : el("span", { class: "pill warn" }, s.source), s.doc]), "No settings."));

const columnsCard = (d) => card("Columns", `version ${d.schemaVersion}${d.key.length ? ", key " + d.key.join(", ") : ""}`,
  table([["Column", "name mono"], ["Type", "name mono"], ["Null", "w"], ["Key", "w"]],
    d.columns.map((c) => [c.column, c.type, c.nullable ? "may be null" : "NOT NULL", c.key ? "key" : ""]), ""),
  el("div", { class: "body" }, el("div", { class: "quiet" }, "As DDL"), el("pre", { tabindex: 0 }, d.schema),
    d.schemaHistory.map((each) => [el("div", { class: "quiet" }, `Version ${each.version}`), each.changes.map((words) => el("div", { class: "mono" }, words))])));

const topic = {
  once: (params) => {
    const tabs = [["", "Partitions"], ["rows", "Rows"], ["readers", "Readers"], ["settings", "Settings"]];
    return el("div", {}, el("h1", {}, a("topics", {}, "Topics"), el("span", { class: "quiet" }, "/"), params.name),
      el("div", { class: "tabs" }, tabs.map(([tab, title]) => el("a", { href: link("topic", { name: params.name, tab }), "aria-current": (params.tab || "") === tab }, title))),
      params.tab === "rows" ? rowSearch(params) : null);
  },
  load: (params) => (params.tab === "rows" ? null : ask("topic", { name: params.name, first: params.first, count: 100 })),
  view: (d, params) => {
    if (!d) return el("div", {});
    if (params.tab === "settings") return card("Settings", "what is set on the topic, else the default", settingTable(d.settings));
    if (params.tab === "readers") return card("Groups and queries", null, readerTable(d.readers, "Nobody reads this topic."));
    const tiles = [[count(d.partitions), "partitions"], [count(d.replicas), "copies"], [count(d.rows), "rows"], [bytes(d.bytes), "in one copy"], [rate(d.rowsPerSecond) + " /s", "rows over a minute"], [ago(d.lastAppendMs, d.nowMs), "last write"]];
    return el("div", {},
      el("div", { class: "tiles" }, tiles.map(([value, word]) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, word)))),
      el("div", { class: "two" },
        card("Rows a second, by minute", "UTC", el("div", { class: "body" }, bars(d.minuteItems, 1, rate, "Rows appended a second, by minute"))),
        card("Bytes a second, by minute", "UTC", el("div", { class: "body" }, bars(d.minuteItems, 2, bytes, "Bytes appended a second, by minute")))),
      card("Partitions", null, table([["Partition", "n"], ["State", "w"], ["Leader", "n"], ["Epoch", "n"], ["Replicas", "w"], ["In sync", "w"], ["Log start", "n"], ["High watermark", "n"], ["Rows", "n"], ["Bytes", "n"]],
        d.partitionItems.map((p) => [a("topic", { name: d.topic, tab: "rows", partition: p.partition }, p.partition), pill(p.state), p.leader < 0 ? "none" : p.leader, p.leaderEpoch,
          p.replicas.join(" ") + (p.adding.length ? ` (adding ${p.adding.join(" ")})` : ""), p.inSync.join(" ") || "none", count(p.logStartOffset), count(p.highWatermark), count(p.highWatermark - p.logStartOffset), bytes(p.bytes)]), "No partitions."), pager(d, "topic", params)),
      d.columns ? columnsCard(d) : null,
      el("p", { class: "quiet mono" }, `topic id ${d.topicId}, `, a("ledger", { ledger: d.ledgerId }, `ledger ${d.ledgerId}`)));
  },
};

const TOKENS = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|(-?\d[\d.eE+-]*)/g;
const coloured = (text) => {
  const made = el("pre", { tabindex: 0 });
  let at = 0;
  for (const found of text.matchAll(TOKENS)) {
    made.append(text.slice(at, found.index), el("span", { class: found[2] ? "k" : found[1] ? "s" : "v" }, found[1] || found[0]));
    at = found.index + (found[1] ? found[1].length : found[0].length);
  }
  made.append(text.slice(at));
  return made;
};
const shown = (value) => {
  if (value === null) return el("span", { class: "null" }, "null");
  const cut = value.isCut ? el("div", { class: "quiet" }, `The first part of ${bytes(value.size)}.`) : null;
  if (value.form === "json") return el("div", {}, coloured(value.text), el("details", {}, el("summary", { class: "quiet" }, "As it is stored"), el("pre", { tabindex: 0 }, value.raw)));
  return el("div", {}, value.form === "hex" ? el("div", { class: "quiet" }, `${bytes(value.size)}, no text: in hex`) : null, el("pre", { tabindex: 0 }, value.text), cut);
};
const brief = (value, most = 300) => (value === null ? el("span", { class: "null mono" }, "null") : el("span", { class: "mono" }, (value.form === "json" ? value.raw : value.text).slice(0, most)));
const cell = (value) => (value !== null && (value.form === "json" || value.isCut || value.text.length > 80)
  ? el("details", {}, el("summary", {}, brief(value, 60)), shown(value)) : brief(value));
const headers = (row) => el("dl", {}, row.headers.map(([name, value]) => [el("dt", { class: "mono" }, name), el("dd", {}, shown(value))]));
const typedRows = (d) => {
  const withHeaders = d.rows.some((row) => row.headers.length);
  return table([["#", "n"], ["Offset", "n"], ["Time (UTC)", "w"],
    ...d.columns.map((c) => [el("span", { title: c.type }, c.column, c.key ? el("span", { class: "quiet" }, " key") : null), "column"]), ...(withHeaders ? [["Headers", "column"]] : [])],
  d.rows.map((row) => [row.partition, count(row.offset), time(row.timeMs), ...row.cells.map(cell), ...(withHeaders ? [headers(row)] : [])]), "");
};
const bytesRows = (d) => [el("div", { class: "rowhead" }, ["#", "Offset", "Time (UTC)", "Key", "Value"].map((word, n) => el("span", { class: n < 2 ? "n" : null }, word))), d.rows.map(rowDetails)];
const rowDetails = (row) => el("details", { class: "row" },
  el("summary", {}, el("span", { class: "n quiet" }, row.partition), el("span", { class: "n" }, count(row.offset)), el("span", { class: "quiet" }, time(row.timeMs)), brief(row.key), brief(row.value)),
  el("div", { class: "detail" },
    el("dl", {}, el("dt", {}, "Time"), el("dd", {}, `${time(row.timeMs)} UTC, ${row.timeType}`), el("dt", {}, "Key"), el("dd", {}, shown(row.key)),
      row.headers.map(([name, value]) => [el("dt", {}, "Header ", el("span", { class: "mono" }, name)), el("dd", {}, shown(value))])),
    el("div", {}, el("div", { class: "quiet" }, `Value, ${row.value ? bytes(row.value.size) : "none"}`), shown(row.value))));

const rowSearch = (params) => {
  const begin = el("select", { name: "begin" }, [["newest", "the newest"], ["offset", "from offset"], ["time", "from time (UTC)"]].map(([value, word]) => el("option", { value }, word)));
  const partition = el("input", { name: "partition", type: "number", min: 0, placeholder: "all", value: params.partition });
  const offset = el("input", { type: "number", min: 0, value: 0 }), when = el("input", { type: "datetime-local", step: 1, value: new Date(Date.now() - 3600e3).toISOString().slice(0, 19) });
  const key = el("input", { name: "key", placeholder: "any" }), byKey = el("label", { class: "grow" }, "Key", key);
  const column = el("select", { name: "column" }, el("option", { value: "" }, "the row as JSON")), value = el("input", { name: "value", placeholder: "any" });
  const byColumn = [el("label", { hidden: true }, "Column", column), el("label", { class: "grow", hidden: true }, "Has", value)];
  const showColumns = (d) => {
    byKey.hidden = Boolean(d.columns);
    for (const label of byColumn) label.hidden = !d.columns;
    const names = new Set([...column.options].map((option) => option.value));
    for (const c of d.columns || []) if (!names.has(c.column)) column.append(el("option", { value: c.column }, c.column));
  };
  const rows = el("input", { type: "number", min: 1, max: 500, value: 50 });
  const button = el("button", { disabled: true }, "Read"), cost = el("div", { class: "cost", role: "status" }), results = el("div", {});
  const places = { offset: el("label", { hidden: true }, "Offset", offset), time: el("label", { hidden: true }, "Time", when) };
  const query = () => ({ topic: params.name, partition: partition.value, begin: begin.value, key: key.value, column: value.value && column.value, value: value.value, count: rows.value,
    at: begin.value === "offset" ? offset.value : begin.value === "time" ? Date.parse(when.value + "Z") || 0 : "" });
  let wanted = 0;
  const say = (text, isError) => { cost.replaceChildren(...[text].flat()); cost.classList.toggle("error", Boolean(isError)); };
  const price = (d) => [el("b", {}, bytes(d.costBytes)), ` to read: ${many(d.sections, "section")} of ${many(d.partitionCount, "partition")}`,
    d.partitionCount === 1 ? ` (${d.spans[0].partition}, offsets ${count(d.spans[0].start)} to ${count(d.spans[0].end)})` : "", `; budget ${bytes(d.budgetBytes)}`,
    d.isCut ? ". The budget ends the search early." : "."];
  const plan = async () => {
    const turn = ++wanted;
    button.disabled = true;
    Object.entries(places).forEach(([name, place]) => { place.hidden = begin.value !== name; });
    try {
      const d = await ask("rows/plan", query());
      if (turn !== wanted) return;
      showColumns(d);
      say(price(d));
      button.textContent = `Read ${bytes(d.costBytes)}`;
      button.disabled = false;
    } catch (error) { if (turn === wanted) say(error.message, true), button.textContent = "Read"; }
  };
  const read = async (more) => {
    button.disabled = true;
    try {
      const d = await ask("rows", more || query());
      say([...price(d), ` ${bytes(d.readBytes)} were read, ${many(d.rows.length, "row")} found.`]);
      const next = d.next === null ? null : el("div", { class: "pager" }, el("a", { href: location.hash, on: { click: (event) => {
        event.preventDefault(); begin.value = "offset"; offset.value = d.next; plan().then(() => button.focus()); } } }, `Go on from offset ${count(d.next)}`));
      results.replaceChildren(card("Rows", d.rows.length && query().begin === "newest" ? "newest first" : null, d.rows.length ? (d.columns ? typedRows(d) : bytesRows(d)) : el("div", { class: "empty" }, "No such rows in what was read."), next));
    } catch (error) { say(error.message, true); }
    button.disabled = false;
  };
  let typed;
  const form = el("form", { on: { submit: (event) => { event.preventDefault(); if (!button.disabled) read(); }, input: () => { button.disabled = true; clearTimeout(typed); typed = setTimeout(plan, 200); } } },
    el("label", {}, "Rows", rows), el("label", {}, "Which", begin), places.offset, places.time, el("label", {}, "Partition", partition), byKey, byColumn, button);
  plan();
  return el("div", {}, card("Find rows", "nothing is read before its cost is shown", el("div", { class: "body" }, form, cost)), results);
};

const readers = {
  load: (params) => ask("readers", { first: params.first, count: 50 }),
  view: (d, params) => el("div", {}, el("h1", {}, "Groups and queries"),
    card(many(d.total, "reader"), "the worst first", readerTable(d.readers, "No groups or queries read this store. Add --checkpoint FOLDER to show queries."), pager(d, "readers", params)),
    d.unread.length ? card("Checkpoints that cannot be read", null, table([["Folder", "name mono"], ["Why", "name"]], d.unread.map((each) => [each.checkpoint, each.message]), "")) : null),
};
const reader = {
  load: (params) => ask("reader", { kind: params.kind, name: params.name, first: params.first, count: 100 }),
  view: (d, params) => el("div", {}, el("h1", {}, a("readers", {}, "Groups and queries"), el("span", { class: "quiet" }, "/"), d.reader, pill(d.verdict)), el("p", {}, d.reason),
    el("div", { class: "tiles" }, [[count(d.lag), "unread rows"], [bytes(d.lagBytes), "unread"], [duration(d.lagMs), "age of the oldest unread row"], [d.catchUpMs === null ? "-" : duration(d.catchUpMs), "to catch up at this pace"],
      [d.lastSignMs ? ago(d.lastSignMs, d.nowMs) : "never", "last activity"], [d.kind === "query" ? d.batch : d.members, d.kind === "query" ? `batch, ${d.state}` : `members, ${d.state}`]].map(([value, word]) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, word)))),
    card("Partitions", null, table([["Partition", "name"], ["Verdict", "w"], ["Position", "n"], ["End", "n"], ["Unread rows", "n"], ["Unread bytes", "n"], ["Time behind", "n"], ["Speed", "n"], ["Member", "name mono"], ["Why", "name"]],
      d.partitionItems.map((p) => [a("topic", { name: p.topic, tab: "rows", partition: p.partition }, `${p.topic}-${p.partition}`), pill(p.verdict), count(p.committed), count(p.highWatermark), count(p.lag), bytes(p.lagBytes), duration(p.lagMs),
        p.speed === null ? "-" : p.speed + "x", p.member || "-", p.reason]), "It has read nothing yet."), pager(d, "reader", params)),
    d.memberItems.length ? card("Members", null, table([["Member", "name mono"], ["Client", "name mono"], ["Instance", "name mono"]], d.memberItems.map((m) => [m.memberId, m.clientId || "-", m.instanceId || "-"]), "")) : null),
};

const ledgers = {
  load: () => ask("ledgers"),
  view: (d) => el("div", {}, el("h1", {}, "Ledgers"), card("Ledgers", "what was decided, in order", table([["Ledger", "name mono"], ["Entries", "n"], ["Newest entry", "w"], ["Journals", "w"], ["Topics", "name"]],
    d.ledgers.map((l) => [a("ledger", { ledger: l.ledger }, l.ledger), count(l.entries), l.isTailUnclear ? pill("unclear") : pill("ok"),
      l.behind.length ? l.behind.map((b) => pill(`broker ${b.broker} lacks ${count(b.entries)}`, "WARN")) : pill("ok"),
      l.isCluster ? el("span", { class: "quiet" }, "the cluster: brokers, topics' names, ACLs, quotas") : l.topics.join(", ") + (l.topicCount > l.topics.length ? ` and ${l.topicCount - l.topics.length} more` : "")]), "None."))),
};
const ledger = {
  load: (params) => ask("entries", { ledger: params.ledger, earlier: params.earlier, count: 100 }),
  view: (d, params) => el("div", {}, el("h1", {}, a("ledgers", {}, "Ledgers"), el("span", { class: "quiet" }, "/"), el("span", { class: "mono" }, d.ledger)),
    card("Newest entries", d.entries.length < d.entryCount ? `the last ${count(d.entries.length)} of ${count(d.entryCount)}` : null, table([["Entry", "n"], ["What it does", "words"]], d.entries.map((e) => [count(e.index), e.words.map((each) => el("div", {}, each))]), "No entries."),
      !params.earlier && d.entries.length < Math.min(100, d.entryCount) ? el("div", { class: "pager" }, "A snapshot holds the others.", a("ledger", { ...params, earlier: 1 }, "Read earlier ones from a journal (up to 200 small files)")) : null)),
};

const settings = {
  load: () => ask("settings"),
  view: (d) => el("div", {}, el("h1", {}, "Settings"), el("p", { class: "quiet" }, "What holds for the store, and the defaults. Programs and queries may set their own; a topic's are on its page."),
    ["cluster", "storage", "topic", "coordinator", "gateway", "producer", "client", "consumer", "source", "sink"].map((group) => {
      const items = d.settings.filter((each) => each.group === group);
      return items.length ? card(group[0].toUpperCase() + group.slice(1), many(items.length, "setting"), settingTable(items)) : null;
    })),
};
const health = {
  load: () => ask("health"),
  view: (d) => el("div", {}, el("h1", {}, "Health", pill(d.verdict)),
    card("Store", d.findingCount ? many(d.findingCount, "finding") : null, findingList(d.findings, "All roots serve, and every partition has a leader and its replicas in sync.")),
    card("Groups and queries in trouble", d.readerCount > d.readers.length ? `the first ${d.readers.length} of ${count(d.readerCount)}` : null, 
      findingList(d.readers.map((each) => ({ ...each, level: each.verdict, fault: each.kind, detail: [a("reader", { kind: each.kind, name: each.reader }, each.reader), ": " + each.reason] })), "Every group and query is OK."))),
};

// -- which page, and when it is asked again ---------------------------------------------------------
const PAGES = { "": overview, topics, topic, readers, reader, ledgers, ledger, settings, health };
const NAV = [["", "Overview"], ["topics", "Topics"], ["readers", "Readers"], ["ledgers", "Ledgers"], ["settings", "Settings"], ["health", "Health"]];
const OF = { topic: "topics", reader: "readers", ledger: "ledgers" };
const main = document.getElementById("main"), live = document.getElementById("live");
let current = null, turn = 0, isAsking = false, badge = {};

const showNav = (name) => {
  const own = OF[name] || name;
  const items = NAV.map(([page, title]) => el("a", { href: link(page), "aria-current": page === own ? "page" : null }, title,
    page === "health" && badge.troubleCount ? el("span", { class: "badge" + (badge.verdict === "CRITICAL" ? "" : " warn") }, count(badge.troubleCount)) : null));
  patch(document.querySelector("nav"), el("nav", { "aria-label": "Pages" }, items));
};
const tell = (fresh) => {
  badge = fresh;
  document.getElementById("path").textContent = "\u200e" + badge.path;
  showNav(current.name);  // the viewer may be on another page by now
};
const failed = (error) => el("div", { class: "card" }, el("div", { class: "finding" }, el("div", {}, pill(error.code || "error")), el("div", {}, error.message),
  error.status === 401 ? el("code", { class: "command" }, "replog ui") : null));
async function refresh() {
  const at = turn, here = current;
  isAsking = true;
  let fresh;
  try {
    const d = await here.page.load(here.params);
    fit();
    fresh = here.page.view(d, here.params);
    if (here.page === overview) tell(d);
  } catch (error) { fresh = failed(error); }
  isAsking = false;
  if (at !== turn) return;
  const box = el("div", { class: "page" }, fresh);
  patch(here.box, box);
  main.setAttribute("aria-busy", "false");
}
const go = () => {
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?");
  if (location.hash === "#main") return;
  const params = Object.fromEntries(new URLSearchParams(query || "")), page = PAGES[name] || overview;
  const isSame = current && current.page === page;
  turn++;
  current = { name: PAGES[name] ? name : "", page, params, box: el("div", { class: "page" }) };
  document.title = (params.name || params.ledger || (NAV.find(([each]) => each === current.name) || ["", "replog"])[1]) + " - replog";
  showNav(current.name);
  main.replaceChildren(...[page.once ? page.once(params) : null, current.box].filter(Boolean));
  if (!isSame) window.scrollTo(0, 0);
  refresh();
};
const follow = () => {
  const feed = new EventSource("/feed");
  feed.addEventListener("look", (event) => {
    const fresh = JSON.parse(event.data);
    if (fresh.path) tell(fresh);
    live.textContent = fresh.isAway ? "no answer" : "live"; live.className = fresh.isAway ? "away" : "on";
    if (!document.hidden && !isAsking && current) refresh();
  });
  feed.addEventListener("error", () => { live.textContent = "away"; live.className = "away"; });
};
window.addEventListener("hashchange", go);
let resized;
window.addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(refresh, 100); });
go();
follow();
ask("overview").then((d) => { document.getElementById("path").textContent = "\u200e" + d.path; showNav(current.name, d); }, () => {});
