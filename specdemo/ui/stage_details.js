// The part of the stage that explains: the step behind a token, and what a figure means. stage.py puts it in
// front of stage.js, whose tools and frame it uses; nothing here runs before stage.js does.

// --- the details of a step -----------------------------------------------------------------------

function choose(pane, mark) {
  chosen?.mark.classList.remove("selected");
  mark?.classList.add("selected");
  chosen = mark && { pane, mark };
}

function openDetails(pane, mark) {
  choose(pane, mark);
  const { step, token, node } = sources.get(mark);
  const title = [`${texts.step} ${step.i}`, pane.label, `\u201c${edged((token ?? node).text)}\u201d`];
  frame.details.hidden = false;
  frame.detailsTitle.textContent = title.join(" \u00b7 ");
  frame.detailsBody.replaceChildren(facts(step, token), nodeTable(step, node));
}

function closeDetails() {
  if (frame.details.contains(document.activeElement)) chosen?.pane.body.focus();
  frame.details.hidden = true;
  choose(null, null);
}

function facts(step, token) {
  const list = make("dl", "facts");
  const other = Math.max(0, step.seconds - (step.draft_s ?? 0) - (step.verify_s ?? 0));
  const rows = [
    ...(token ? [[texts.origin, legend[token.origin] ?? token.origin], [texts.logprob, fixed(token.logprob, 3)]] : []),
    [texts.own_clock, fixed(step.at, 3, " s")], [texts.took, fixed(step.seconds * 1e3, 1, " ms")],
    [texts.draft, fixed((step.draft_s ?? 0) * 1e3, 1, " ms")],
    [texts.verify, fixed((step.verify_s ?? 0) * 1e3, 1, " ms")], [texts.other, fixed(other * 1e3, 1, " ms")],
  ];
  for (const [name, value] of rows) fact(list, name, value);
  return list;
}

function fact(list, name, value) {
  const pair = within(list, "div");
  within(pair, "dt", "", shown(name));
  within(pair, "dd", "", shown(value));
}

// What a recorded race was: its prompt, how it was recorded, and where.
function drawAbout(pairs) {
  frame.about.replaceChildren();
  frame.about.hidden = !pairs.length;
  for (const { name, value } of pairs) fact(frame.about, name, value);
}

function nodeTable(step, picked) {
  const nodes = step.nodes ?? [];
  if (!nodes.length) return make("p", "none", texts.nothing_drafted);
  const scroller = make("div", "scroller");
  scroller.tabIndex = 0;
  scroller.setAttribute("role", "group");
  scroller.setAttribute("aria-label", texts.drafted);
  const table = within(scroller, "table");
  const head = within(within(table, "thead"), "tr");
  const kinds = { token: "", drafted_by: "", p: "number", q: "number", outcome: "outcome" };
  for (const [key, kind] of Object.entries(kinds)) within(head, "th", kind, texts[key]).scope = "col";
  const body = within(table, "tbody");
  for (const [node, depth] of inTreeOrder(nodes)) {
    const row = within(body, "tr", node === picked ? "picked" : "");
    within(row, "td", "token-text", edged(node.text)).style.setProperty("--depth", depth);
    within(row, "td", "", shown(legend[node.origin] ?? node.origin));
    within(row, "td", "number", fixed(node.p, 3));
    within(row, "td", "number", fixed(node.q, 3));
    within(row, "td", "outcome", texts[node.outcome] ?? shown(node.outcome)).dataset.outcome = node.outcome;
  }
  return scroller;
}

// Each node with its depth, a node's descendants right behind it. In a chain every node but the first has an only
// child: nothing branches, so nothing is indented.
function inTreeOrder(nodes) {
  const children = new Map();
  nodes.forEach((node, i) => children.set(node.parent ?? i - 1, [...(children.get(node.parent ?? i - 1) ?? []), i]));
  const branches = [...children.values()].some((found) => found.length > 1);
  const ordered = [];
  const visit = (i, depth) => {
    ordered.push([nodes[i], branches ? depth : 0]);
    for (const child of children.get(i) ?? []) visit(child, depth + 1);
  };
  for (const root of children.get(-1) ?? []) visit(root, 0);
  return ordered;
}

// Arrows walk over the tokens of the focused pane; those without text of their own are passed over.
function onPaneKey(pane, event) {
  const at = chosen?.pane === pane ? chosen.mark : null;
  if (event.key === "Enter" && at) return openDetails(pane, at);
  const ahead = event.key === "ArrowRight";
  if (!ahead && event.key !== "ArrowLeft") return;
  event.preventDefault();
  const marks = [...pane.body.querySelectorAll(root.matches(".with-rejected") ? ".token, .node" : ".token")]
    .filter((mark) => mark.textContent);
  const next = at ? marks[marks.indexOf(at) + (ahead ? 1 : -1)] : marks.at(ahead ? 0 : -1);
  if (!next) return;
  if (frame.details.hidden) choose(pane, next);
  else openDetails(pane, next);
  next.scrollIntoView({ block: "nearest" });
}

function onEscape(event) {
  if (event.key !== "Escape") return;
  if (frame.tip.hidden) closeDetails();
  else hideTip();
}

// --- definitions: on hover, on focus and on touch --------------------------------------------------

function definedTerm(row) {
  const term = make("button", "term", shown(row.label));
  term.type = "button";
  term.setAttribute("aria-describedby", frame.tip.id);
  const show = () => showTip(term, row.definition);
  for (const type of ["pointerenter", "focus", "click"]) term.addEventListener(type, show);
  term.addEventListener("blur", hideTip);
  term.addEventListener("pointerleave", (event) => { if (event.relatedTarget !== frame.tip) hideTip(); });
  return term;
}

function showTip(term, definition) {
  frame.tip.textContent = shown(definition);
  frame.tip.hidden = false;
  const [at, here] = [term.getBoundingClientRect(), root.getBoundingClientRect()];
  frame.tip.style.top = `${at.bottom - here.top}px`;
  frame.tip.style.left = `${Math.max(0, Math.min(at.left - here.left, here.width - frame.tip.offsetWidth))}px`;
}

function hideTip() {
  frame.tip.hidden = true;
}
