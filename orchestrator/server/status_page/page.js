"use strict";

const EVERY_MS = 2000;
const ANSWER_WITHIN_MS = 10000;
const GOOD = { in: true, closed: true };
const WARN = { joining: true, draining: true, leaving: true };
const RELATION = { equal: "", at_least: "at least ", at_most: "at most " };
const CHART = { width: 176, height: 25, edge: 2 };

const at = (id) => document.getElementById(id);

/** An element with text or children. Whatever comes from the server passes here, as text. */
function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

const cell = (...children) => element("td", "", ...children);
const number = (value) => element("td", "n", value);
const row = (...cells) => element("tr", "", ...cells);
const milliseconds = (value) => (value === null ? "–" : value.toFixed(1));

function badge(word) {
  const kind = GOOD[word] ? "good" : WARN[word] ? "warn" : "bad";
  return element("span", `badge ${kind}`, word.replace("_", " "));
}

function duration(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const [unit, size] = units.find(([, size]) => seconds >= size) ?? units[3];
  return `${Math.floor(seconds / size)} ${unit}`;
}

/** The last values of a span, the oldest left, from zero to the greatest. */
function sparkline(name, values) {
  const chart = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const { width, height, edge } = CHART;
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.setAttribute("preserveAspectRatio", "none");
  chart.setAttribute("role", "img");
  const greatest = Math.max(...values, 0);
  chart.setAttribute("aria-label", `${name}: last ${values.length} requests, at most ${milliseconds(greatest)} ms`);
  if (values.length) {
    const shown = values.length === 1 ? [values[0], values[0]] : values;
    const points = shown.map((value, index) => {
      const x = edge + (index * (width - 2 * edge)) / (shown.length - 1);
      const y = height - edge - (greatest ? (value / greatest) * (height - 2 * edge) : 0);
      return `${x.toFixed(1)},${y.toFixed(1)}`;
    });
    const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    line.setAttribute("points", points.join(" "));
    chart.append(line);
  }
  return chart;
}

/** The table's rows, which replace those it had: one body for each group. */
function fill(id, groups) {
  const table = at(id);
  table.replaceChildren(table.tHead, ...groups.map((rows) => element("tbody", "", ...rows)));
}

const opened = new Set();

function facts(key, capabilities) {
  const known = Object.entries(capabilities);
  if (!known.length) return [];
  const text = known.map(([name, { value, verified }]) => `${name}=${value}${verified ? "" : "?"}`).join("  ");
  const made = element("details", "facts", element("summary", "", known.length === 1 ? "1 fact" : `${known.length} facts`), element("code", "", text));
  made.open = opened.has(key);
  made.addEventListener("toggle", () => (made.open ? opened.add(key) : opened.delete(key)));
  return [made];
}

function difference({ field, own, needed, relation, source, keeps_out: keepsOut }) {
  const verdict = keepsOut ? "Kept out" : "Note";
  const text = `${verdict}: ${field} is ${own}, ${source} needs ${RELATION[relation]}${needed}`;
  return element("span", `difference ${keepsOut ? "bad" : "warn"}`, text);
}

function memberRows(role, member) {
  const rows = [
    row(
      cell(role),
      cell(member.url),
      cell(badge(member.state)),
      cell(member.generation || "–"),
      cell(badge(member.breaker)),
      number(member.in_flight),
      number(member.leases),
    ),
  ];
  const more = element(
    "td",
    "more",
    ...member.differences.map(difference),
    ...facts(`${role} ${member.url}`, member.capabilities),
  );
  if (more.hasChildNodes()) {
    more.colSpan = 6;
    rows.push(row(cell(), more));
  }
  return rows;
}

function queueRow(name, { active, limit, waiting }) {
  const share = element("meter");
  share.max = limit || 1;
  share.value = active;
  share.title = `${active} of ${limit}`;
  return row(cell(name), number(active), number(limit), cell(share), number(waiting));
}

function verdict(status) {
  if (status.missing_roles.length) return ["bad", `not ready: nobody for ${status.missing_roles.join(", ")}`];
  return status.draining ? ["warn", "draining"] : ["good", "ready"];
}

function show(status) {
  const [kind, word] = verdict(status);
  at("verdict").className = `badge ${kind}`;
  at("verdict").textContent = word;
  at("about").textContent = [
    `version ${status.version}`,
    `config ${status.config}`,
    `worker ${status.worker}`,
    `up ${duration(status.uptime_seconds)}`,
    `${status.in_flight} in flight`,
  ].join(" · ");
  fill("members", Object.entries(status.pools).flatMap(([role, members]) => members.map((each) => memberRows(role, each))));
  const { vocab_size: vocabulary, max_model_len: window, capabilities } = status.engine_limits;
  const known = [
    ...(vocabulary === null ? [] : [`token ids below ${vocabulary}`]),
    ...(window === null ? [] : [`${window} tokens of context`]),
    ...capabilities,
  ];
  at("limits").textContent = `Engines take: ${known.join(", ") || "nothing is known"}`;
  at("sources").replaceChildren(
    ...status.sources.map(({ name, members, error }) => {
      const text = `Source ${name}: ${members} members${error === null ? "" : `, failing: ${error}`}`;
      return element("li", "", error === null ? text : element("span", "difference bad", text));
    }),
  );
  fill("queues", [Object.entries(status.queues).map(([name, gate]) => queueRow(name, gate))]);
  fill("latency", [
    Object.entries(status.latency).map(([name, span]) =>
      row(
        cell(name.replaceAll("_", " ")),
        number(span.count),
        number(milliseconds(span.p50_ms)),
        number(milliseconds(span.p99_ms)),
        cell(sparkline(name, span.last_ms)),
      ),
    ),
  ]);
}

async function refresh() {
  try {
    const options = { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(ANSWER_WITHIN_MS) };
    const answer = await fetch(location.origin + location.pathname, options);
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    show(await answer.json());
    at("fresh").textContent = `as of ${new Date().toLocaleTimeString()}`;
    document.body.classList.remove("stale");
  } catch (error) {
    at("fresh").textContent = `no answer: ${error.message}`;
    document.body.classList.add("stale");
  }
}

async function follow() {
  if (!document.hidden) await refresh();
  setTimeout(follow, EVERY_MS);
}

document.addEventListener("visibilitychange", () => document.hidden || refresh());
follow();
