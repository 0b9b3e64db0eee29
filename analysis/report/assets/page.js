"use strict";
// Looks through the responses that the page holds. Foreign words are only ever set as text, never as markup or address.
(() => {
  const PAGE = 10;
  const LABELS = { G: "grounded", R: "reasonable", S: "stereotype", F: "fabricated" };
  const ACCURACIES = { C: "correct", I: "incorrect", P: "partially correct", U: "unverifiable" };
  const [MODEL, TASK, GROUP, PERSONA, SAMPLE, STATE, LETTERS] = [0, 1, 2, 3, 4, 5, 6];

  const find = (id) => document.getElementById(id);
  // Not every browser unfolds for paper by style alone.
  let unfolded = [];
  addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details:not(.screen-only):not([open])")];
    for (const each of unfolded) each.open = true;
  });
  addEventListener("afterprint", () => {
    for (const each of unfolded) each.open = false;
  });

  const filters = find("filters");
  if (!filters) return;
  const index = JSON.parse(find("index").textContent);
  const islands = document.getElementsByClassName("piece");
  const pieces = new Map();
  const controls = ["by-model", "by-task", "by-group", "by-label", "order", "by-words"].map(find);
  const [byModel, byTask, byGroup, byLabel, order, byWords] = controls;
  let matching = [];
  let first = 0;

  function words(place) {
    const number = Math.floor(place / index.piece);
    if (!pieces.has(number)) pieces.set(number, JSON.parse(islands[number].textContent));
    return pieces.get(number)[place % index.piece];
  }

  function element(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function own(tag, className, text) {
    const made = element(tag, `own ${className}`.trim(), text);
    made.dir = "auto";
    return made;
  }

  function overInferred(row) {
    return [...row[LETTERS]].filter((letter) => letter === "S" || letter === "F").length;
  }

  function rate(row) {
    return row[LETTERS].length ? overInferred(row) / row[LETTERS].length : -1;
  }

  const judged = (row) => row[STATE] === "read" || row[STATE] === "truncated";

  function hasLabels(row, wanted) {
    if (wanted === "missing") return !judged(row);
    if (wanted === "none") return judged(row) && overInferred(row) === 0;
    return [...wanted].some((letter) => row[LETTERS].includes(letter));
  }

  function hasWords(place, wanted) {
    const entry = words(place);
    const persona = index.personas[index.rows[place][PERSONA]];
    return [persona, entry.text, ...entry.claims.map((claim) => claim[2])].some((text) =>
      text.toLowerCase().includes(wanted));
  }

  function select() {
    const wanted = byWords.value.trim().toLowerCase();
    const is = (row, at, control) => control.value === "" || row[at] === Number(control.value);
    matching = [];
    index.rows.forEach((row, place) => {
      if (is(row, MODEL, byModel) && is(row, TASK, byTask) && is(row, GROUP, byGroup)
        && (byLabel.value === "" || hasLabels(row, byLabel.value))
        && (wanted === "" || hasWords(place, wanted))) matching.push(place);
    });
    const sign = { mixed: 0, most: -1, least: 1 }[order.value];
    if (sign) {
      // Without a claim there is no rate: such responses come last either way.
      const key = (place) => (rate(index.rows[place]) < 0 ? 2 : sign * rate(index.rows[place]));
      matching.sort((one, other) => key(one) - key(other) || one - other);
    }
    first = 0;
    show();
  }

  function show() {
    const last = Math.min(first + PAGE, matching.length);
    const count = matching.length.toLocaleString("en");
    find("count").textContent = matching.length
      ? `${(first + 1).toLocaleString("en")}–${last.toLocaleString("en")} of ${count}`
      : "no response is like that";
    find("responses").replaceChildren(...matching.slice(first, last).map(card));
    for (const button of document.querySelectorAll("[data-turn]")) {
      button.setAttribute("aria-disabled", String(!reachable(Number(button.dataset.turn))));
    }
  }

  function reachable(turn) {
    const start = first + turn * PAGE;
    return start >= 0 && start < matching.length;
  }

  function card(place) {
    const row = index.rows[place];
    const entry = words(place);
    const made = element("article", "response");
    const head = element("div", "response-head");
    const claims = row[LETTERS].length;
    head.append(
      element("h3", "", index.models[row[MODEL]]),
      element("span", "", index.tasks[row[TASK]]),
      element("span", "aside", `persona ${index.personas[row[PERSONA]]}, ${index.groups[row[GROUP]]}, sample ${row[SAMPLE]}`),
      element("span", "", claims ? `${overInferred(row)} of ${claims} claims over-inferred` : "no claims"),
    );
    if (index.simulated) head.append(element("span", "mark", "SIMULATED"));
    if (row[STATE] !== "read") head.append(element("span", "aside", `${row[STATE]}${entry.reason ? `: ${entry.reason}` : ""}`));
    const pair = element("div", "pair");
    pair.append(evidence(row, entry), verdicts(row, entry));
    made.append(head, pair);
    return made;
  }

  function evidence(row, entry) {
    const side = element("div");
    const facts = index.facts[row[PERSONA]];
    const box = element("div", "facts-list");
    box.append(element("h4", "", "What the user revealed"));
    if (facts.length) {
      const list = element("ol");
      list.append(...facts.map((fact) => own("li", "", fact)));
      box.append(list);
    } else {
      box.append(element("p", "why", "The store does not say."));
    }
    side.append(box, element("h4", "more", "What the model wrote"));
    if (entry.why) {
      side.append(element("p", "why", entry.why));
    } else {
      const text = own("div", "text", entry.text);
      text.tabIndex = 0;
      text.setAttribute("role", "region");
      text.setAttribute("aria-label", "Response");
      side.append(text);
    }
    if (entry.cut) side.append(element("p", "more", `${entry.cut.toLocaleString("en")} more characters are in the store.`));
    if (entry.key) {
      const line = element("p", "more", "mirage inspect STORE ");
      line.append(element("code", "", entry.key.slice(0, 12)));
      side.append(line);
    }
    return side;
  }

  function verdicts(row, entry) {
    const side = element("div");
    side.append(element("h4", "", "What the judge found in it"));
    const list = element("ol", "claims");
    list.append(...entry.claims.map(claim));
    side.append(list);
    if (!entry.claims.length) side.append(element("p", "why", judged(row) ? "No claim about the user." : "No verdict."));
    if (entry.claimsCut) side.append(element("p", "more", `${entry.claimsCut.toLocaleString("en")} more claims are in the store.`));
    return side;
  }

  function claim([label, accuracy, text, reasoning]) {
    const item = element("li", Object.hasOwn(LABELS, label) ? `label-${label}` : "");
    const tag = element("div", "label");
    tag.append(element("span", "swatch"), element("span", "name", LABELS[label] ?? "unknown"));
    const body = element("div");
    body.append(own("div", "", text));
    const why = [ACCURACIES[accuracy], reasoning].filter(Boolean).join(" · ");
    if (why) body.append(own("div", "why", why));
    item.append(tag, body);
    return item;
  }

  function choices(control, names) {
    control.append(...names.map((name, place) => {
      const option = element("option", "", name);
      option.value = String(place);
      return option;
    }));
  }

  let waiting = 0;
  choices(byModel, index.models);
  choices(byTask, index.tasks);
  choices(byGroup, index.groups);
  for (const control of controls.slice(0, 5)) control.addEventListener("change", select);
  byWords.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(select, 200);
  });
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("reset", () => setTimeout(select));
  for (const button of document.querySelectorAll("[data-turn]")) {
    button.addEventListener("click", () => {
      const turn = Number(button.dataset.turn);
      if (!reachable(turn)) return;
      first += turn * PAGE;
      show();
      find("responses").focus({ preventScroll: true });
      find("filters").scrollIntoView();
    });
  }
  for (const hidden of [filters, ...document.getElementsByClassName("pager")]) hidden.hidden = false;
  select();
})();
