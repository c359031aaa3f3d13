// The script of the stage. Gradio calls it once per mount with (element, props, watch); stage.py puts
// STYLE, TEXTS, stage_pane.js and stage_details.js in front of it. props.value is a log of JSON lines which
// only grows; "e" says what a line is:
//
//   idle, start  {labels, scoreboard: [{key, label, definition}], legend, strings,
//                 about: [{name, value}]}   clears the stage; about: what a recorded race was
//   step         {side, i, at, seconds, draft_s, verify_s, tokens: [{text, origin, logprob}],
//                 nodes: [{text, origin, parent, p, q, outcome}]}   times in seconds; parent: -1 or an earlier node
//   figures      {values: {key: {plain, speculative} or {joint}}}                    ready-made strings
//   failure      {side, text}   this path broke and the other goes on
//   status, error {text}        verdict {kind, text}        end {finish: {path: reason}, text}
//
// Everything is drawn with createElement and textContent: no text of a line is ever parsed as HTML.

const PATHS = ["plain", "speculative"];
const ORIGINS = ["draft", "ngram", "target", "unverified"];
const VERDICTS = { identical: "\u2713", diverged: "\u2260", "same distribution": "\u2248", incomplete: "\u2026", lossy: "\u2717" };

// What outlives a mount: a tab switch builds the stage anew, and the switch should stay as it was.
const remembered = (window.specdemoStage ??= { rejected: false, mounts: 0 });
const uid = `specdemo-stage-${++remembered.mounts}`;
const root = element.querySelector(".specdemo-stage");
const sources = new WeakMap(); // a drawn token or node -> {step, token, node}
let texts = TEXTS;
let legend = {};
let chosen = null; // the selected token or node: {pane, mark}

// --- small tools -------------------------------------------------------------------------------

function make(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== "") made.textContent = text;
  return made;
}

function within(parent, tag, className, text) {
  return parent.appendChild(make(tag, className, text));
}

// Control characters have no shape of their own; their pictures show that they are there.
function shown(text) {
  return String(text ?? "").replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g,
    (char) => String.fromCharCode(0x2400 + char.charCodeAt(0))).replace(/\u007f/g, "\u2421");
}

// In a table the white space at the edges of a token matters as much as its letters.
function edged(text) {
  return shown(text).replace(/\n/g, "\u21b5").replace(/\t/g, "\u21e5").replace(/\r/g, "\u240d")
    .replace(/^ +| +$/g, (spaces) => "\u2423".repeat(spaces.length));
}

function fixed(number, digits, unit = "") {
  if (typeof number !== "number" || !Number.isFinite(number)) return "\u2013";
  return number.toFixed(digits).replace("-", "\u2212") + unit;
}

// --- the frame, built once per mount -------------------------------------------------------------

function buildFrame() {
  const about = within(root, "dl", "about");
  const bar = within(root, "div", "bar");
  const frame = { about, legend: within(bar, "div", "legend"), bar };
  const label = within(bar, "label", "switch");
  frame.rejected = within(label, "input");
  frame.rejected.type = "checkbox";
  frame.rejected.checked = remembered.rejected;
  frame.rejectedText = within(label, "span");
  frame.rejected.addEventListener("change", showRejected);
  frame.status = within(root, "div", "status");
  const main = within(root, "div", "main");
  frame.panes = Object.fromEntries(PATHS.map((path) => [path, buildPane(main, path)]));
  frame.board = within(main, "div", "board");
  frame.table = within(frame.board, "table");
  frame.verdict = within(frame.board, "p", "verdict");
  frame.summary = within(root, "p", "summary");
  frame.summary.setAttribute("aria-live", "polite");
  frame.details = within(root, "section", "details");
  const head = within(frame.details, "div", "details-head");
  frame.detailsTitle = within(head, "div", "details-title");
  frame.detailsTitle.setAttribute("aria-live", "polite"); // speaks only when the reader opens a step
  frame.close = within(head, "button", "close");
  frame.close.type = "button";
  frame.close.addEventListener("click", closeDetails);
  frame.detailsBody = within(frame.details, "div");
  frame.tip = within(root, "div", "tip");
  frame.tip.id = `${uid}-tip`;
  frame.tip.setAttribute("role", "tooltip");
  frame.tip.hidden = true;
  frame.tip.addEventListener("pointerleave", hideTip);
  root.addEventListener("keydown", onEscape);
  return frame;
}

function showRejected() {
  remembered.rejected = frame.rejected.checked;
  following(Object.values(frame.panes), () => root.classList.toggle("with-rejected", remembered.rejected));
}

// --- a run begins --------------------------------------------------------------------------------

function begin(event, running) {
  texts = { ...TEXTS, ...event.strings };
  legend = event.legend ?? {};
  for (const path of PATHS) clearPane(frame.panes[path], event.labels?.[path] ?? path, running);
  frame.rejectedText.textContent = texts.show_rejected;
  frame.legend.replaceChildren();
  const origins = ORIGINS.filter((origin) => legend[origin]);
  if (origins.length) within(frame.legend, "span", "legend-title", texts.written_by);
  for (const origin of origins) within(frame.legend, "span", `sample ${origin}`, shown(legend[origin]));
  drawAbout(event.about ?? []);
  drawBoard(event.scoreboard ?? [], event.labels ?? {});
  say("", false);
  frame.verdict.replaceChildren();
  frame.summary.textContent = "";
  frame.details.setAttribute("aria-label", texts.details);
  frame.close.textContent = texts.close;
  closeDetails();
  hideTip();
}

function drawBoard(rows, labels) {
  frame.cells = new Map();
  frame.table.replaceChildren();
  frame.board.hidden = rows.length === 0;
  const head = within(within(frame.table, "thead"), "tr");
  for (const text of [texts.figure, ...PATHS.map((path) => labels[path] ?? path)]) {
    within(head, "th", "", shown(text)).scope = "col";
  }
  const body = within(frame.table, "tbody");
  for (const row of rows) {
    const line = within(body, "tr");
    const name = within(line, "th");
    name.scope = "row";
    name.append(row.definition ? definedTerm(row) : make("span", "", shown(row.label)));
    frame.cells.set(row.key, Object.fromEntries(PATHS.map((path) => [path, within(line, "td", path, "\u2013")])));
  }
}

// --- a run goes on -------------------------------------------------------------------------------

function drawStep(step) {
  const pane = frame.panes[step.side];
  if (!pane) return;
  const group = within(pane.fresh, "span", "step");
  const tokens = step.tokens ?? [];
  for (const token of tokens) {
    const origin = ORIGINS.includes(token.origin) ? token.origin : "target";
    sources.set(within(group, "span", `token ${origin}`, shown(token.text)), { step, token });
  }
  pane.count += tokens.length;
  // What was drafted in vain stood where the target then wrote its own token.
  const own = tokens.at(-1)?.origin === "target" ? group.lastChild : null;
  for (const node of step.nodes ?? []) {
    if (node.outcome === "accepted") continue;
    const struck = make("del", `node ${node.outcome === "rejected" ? "rejected" : "untested"}`, shown(node.text));
    sources.set(struck, { step, node });
    group.insertBefore(struck, own);
  }
}

// Where the reader looks, and no state of the whole race: the other path is still running.
function fail({ side, text }) {
  const pane = frame.panes[side];
  if (!pane) return;
  pane.box.dataset.state = "finished";
  pane.reason = texts.finish_failed;
  within(pane.fresh, "p", "failure", shown(text)).setAttribute("role", "alert");
}

function fillFigures(values) {
  for (const [key, value] of Object.entries(values ?? {})) {
    const cells = frame.cells.get(key);
    if (!cells) continue;
    const joint = value.joint !== undefined;
    cells.plain.hidden = joint; // one value for both paths takes both columns
    cells.speculative.colSpan = joint ? 2 : 1;
    for (const path of PATHS) {
      const text = shown((joint ? value.joint : value[path]) ?? "\u2013");
      if (cells[path].textContent !== text) cells[path].textContent = text;
    }
  }
}

function say(text, isError) {
  frame.status.classList.toggle("error", isError);
  if (isError) frame.status.setAttribute("role", "alert");
  else frame.status.removeAttribute("role");
  frame.status.textContent = shown(text);
}

function drawVerdict(event) {
  frame.verdict.dataset.kind = Object.hasOwn(VERDICTS, event.kind) ? event.kind : "incomplete";
  frame.verdict.replaceChildren(make("span", "glyph", VERDICTS[frame.verdict.dataset.kind]));
  frame.verdict.firstChild.setAttribute("aria-hidden", "true");
  within(frame.verdict, "span", "", shown(event.text));
}

function finish(event) {
  for (const path of PATHS) {
    const reason = event.finish?.[path];
    frame.panes[path].box.dataset.state = "finished";
    frame.panes[path].reason = reason ? shown(texts[`finish_${reason}`] ?? reason) : "";
  }
  frame.summary.textContent = shown(event.text);
}

function giveUp(event) {
  if (root.querySelector("[data-state=running]")) finish({}); // no "end" follows a failure
  say(event.text, true);
}

// One insertion and one layout per update, however many tokens came.
function showFresh() {
  const panes = Object.values(frame.panes).filter((pane) => pane.fresh.firstChild);
  if (panes.length) following(panes, () => panes.forEach((pane) => pane.body.append(pane.fresh)));
  for (const pane of Object.values(frame.panes)) {
    const state = [pane.count ? `${pane.count} ${texts.tokens}` : "", pane.reason].filter(Boolean).join(" \u00b7 ");
    if (pane.state.textContent !== state) pane.state.textContent = state;
  }
}

// --- the log ---------------------------------------------------------------------------------------

const HANDLERS = {
  idle: (event) => begin(event, false), start: (event) => begin(event, true), step: drawStep, verdict: drawVerdict,
  failure: fail,
  figures: (event) => fillFigures(event.values), status: (event) => say(event.text, false),
  error: giveUp, end: finish,
};

let seen = "";
let offset = 0;

function read() {
  const log = typeof props.value === "string" ? props.value : "";
  if (!log.startsWith(seen)) {
    offset = 0; // another log, not a longer one
    begin({}, false);
  }
  seen = log;
  for (let stop; (stop = log.indexOf("\n", offset)) >= 0; offset = stop + 1) {
    try {
      const event = JSON.parse(log.slice(offset, stop));
      HANDLERS[event.e]?.(event);
    } catch (problem) {
      console.warn("stage: a line was skipped:", problem); // the lines after it may still be sound
    }
  }
  showFresh();
}

const sheet = document.getElementById("specdemo-stage-style") ?? document.head.appendChild(make("style"));
sheet.id = "specdemo-stage-style";
sheet.textContent = STYLE;
const resized = new ResizeObserver(() => Object.values(frame.panes).forEach(toEnd)); // also when it is seen again
const frame = buildFrame();
begin({}, false);
showRejected();
read();
watch("value", read);
