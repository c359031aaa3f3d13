// The pane of a path: its text, and the place where the reader stands in it. stage.py puts it in front of
// stage.js, whose tools and frame it uses; nothing here runs before stage.js does.

function buildPane(parent, path) {
  const box = within(parent, "div", `pane ${path}`);
  const head = within(box, "div", "pane-head");
  const pane = { path, box, title: within(head, "div", "pane-title"), state: within(head, "div", "pane-state") };
  pane.body = within(box, "div", "pane-body");
  pane.body.tabIndex = 0;
  pane.body.setAttribute("role", "region");
  pane.body.addEventListener("click", (event) => {
    const mark = event.target.closest(".token, .node");
    if (mark && window.getSelection().isCollapsed) openDetails(pane, mark);
  });
  pane.body.addEventListener("keydown", (event) => onPaneKey(pane, event));
  pane.body.addEventListener("scroll", () => notePlace(pane));
  resized.observe(pane.body);
  return pane;
}

function clearPane(pane, label, running) {
  Object.assign(pane, { label: shown(label), count: 0, fresh: new DocumentFragment(), top: 0, atEnd: true });
  pane.title.textContent = pane.label;
  pane.body.setAttribute("aria-label", pane.label);
  pane.box.dataset.state = running ? "running" : "idle";
  pane.reason = running ? texts.running : "";
  pane.body.replaceChildren();
  if (!running) within(pane.body, "p", "hint", texts.hint);
}

// Only the reader moves a pane away from its end: a narrower window or another tab in front of it does not.
function notePlace(pane) {
  const { clientHeight, clientWidth, scrollHeight, scrollTop } = pane.body;
  if (!clientHeight) return; // behind another tab
  const moved = scrollTop !== pane.top && clientWidth === pane.width; // with a new width the browser moves it
  if (moved) pane.atEnd = scrollHeight - scrollTop - clientHeight < 24;
  Object.assign(pane, { top: scrollTop, width: clientWidth });
}

function toEnd(pane) {
  if (!pane.body.clientHeight || !pane.atEnd) return;
  pane.body.scrollTop = pane.body.scrollHeight;
  Object.assign(pane, { top: pane.body.scrollTop, width: pane.body.clientWidth });
}

// Panes that stood at their end still do after the change; one where the reader scrolled up stays put.
function following(panes, change) {
  panes.forEach(notePlace);
  change();
  panes.forEach(toEnd);
}
