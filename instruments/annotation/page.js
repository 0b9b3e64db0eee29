/* The labelling page. Everything that comes from the server is put in as text, never as markup. */
"use strict";

(() => {
  const SETTLE_MS = 300; // a second press that meant the item before must not label this one unseen
  const KEYS = "mirage-annotation-keys";
  const one = (id) => document.getElementById(id);
  const choices = [...document.querySelectorAll(".choice")];

  let view = null; // what the server said last
  let reviewing = false; // going through the skipped items
  let busy = false;
  let unsent = null; // a request that did not get through
  let shownAt = 0;
  let watched = 0; // milliseconds for which this item was on a visible screen
  let watchingSince = null;
  let keysOn = true;

  // ----- time on the item: counted only while the page can be seen

  function watch() {
    if (watchingSince === null && !document.hidden && view?.item) watchingSince = performance.now();
  }

  function lookAway() {
    if (watchingSince !== null) watched += performance.now() - watchingSince;
    watchingSince = null;
    if (view?.item) remember("time", String(Math.round(watched)));
  }

  function elapsed() {
    return Math.round(watched + (watchingSince === null ? 0 : performance.now() - watchingSince));
  }

  function clock(milliseconds) {
    const seconds = Math.floor(milliseconds / 1000);
    const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
    const two = (number) => String(number).padStart(2, "0");
    return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
  }

  function tick() {
    if (!view?.item) return;
    one("item-time").textContent = clock(elapsed());
    one("all-time").textContent = clock(view.elapsed_ms + elapsed());
  }

  // ----- what a reload must not lose: the comment being written and the time already spent

  function remember(what, value) {
    try {
      sessionStorage.setItem(`${what}:${view.annotator}:${view.item.id}`, value);
    } catch { /* a browser without storage loses it on reload, nothing more */ }
  }

  function recall(what) {
    try {
      return sessionStorage.getItem(`${what}:${view.annotator}:${view.item.id}`);
    } catch {
      return null;
    }
  }

  function forget(item) {
    try {
      for (const what of ["comment", "time"]) sessionStorage.removeItem(`${what}:${view.annotator}:${item}`);
    } catch { /* as above */ }
  }

  // ----- talking to the server

  async function ask(path, body) {
    const options = { credentials: "same-origin", cache: "no-store" };
    if (body !== undefined) {
      Object.assign(options, {
        method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
      });
    }
    let response;
    try {
      response = await fetch(path, options);
    } catch {
      throw new Error("The server does not answer. Is `mirage annotate serve` still running?");
    }
    if (response.status === 204) return null;
    const told = await response.json().catch(() => ({ error: `The server answered ${response.status}.` }));
    if (!response.ok) throw new Error(told.error);
    return told;
  }

  async function run(request) {
    if (busy) return;
    setBusy(true);
    unsent = null;
    one("trouble").hidden = true;
    try {
      await request();
    } catch (error) {
      unsent = request;
      one("trouble-text").textContent = error.message;
      one("trouble").hidden = false;
      one("retry").focus();
    } finally {
      setBusy(false);
      // A new link may have been opened meanwhile.
      if (token()) begin();
    }
  }

  function setBusy(now) {
    busy = now;
    document.querySelector("main").setAttribute("aria-busy", String(now));
  }

  function namePress() {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  // ----- what the annotator does

  function answer(label) {
    if (busy || unsent || !view?.item || performance.now() - shownAt < SETTLE_MS) return;
    const item = view.item.id;
    // Named once, so that trying again cannot count twice.
    const press = {
      annotator: view.annotator, item, submission: namePress(), label,
      comment: one("comment").value, elapsed_ms: elapsed(), skipped: reviewing,
    };
    run(async () => {
      const next = await ask("label", press);
      lookAway();
      forget(item);
      view = null;
      show(next, label === null ? "Skipped." : `Saved as ${nameOf(label)}.`);
    });
  }

  function undo() {
    if (busy || unsent || !view?.undo) return;
    const wish = { annotator: view.annotator, item: view.undo, skipped: reviewing };
    run(async () => show(await ask("undo", wish), "Taken back."));
  }

  function review() {
    reviewing = true;
    load();
  }

  function load() {
    run(async () => show(await ask(reviewing ? "item?skipped=1" : "item"), ""));
  }

  function nameOf(label) {
    return choices.find((choice) => choice.dataset.label === label).querySelector(".name").textContent;
  }

  // ----- what the annotator sees

  function show(next, happened) {
    lookAway();
    view = next;
    if (!view.item?.skipped && !view.skipped) reviewing = false;
    one("annotator").textContent = view.annotator;
    one("who").hidden = one("gauges").hidden = one("actions").hidden = false;
    one("rehearsal").hidden = !view.simulated;
    showProgress();
    one("item").hidden = !view.item;
    one("finished").hidden = Boolean(view.item);
    one("skip").hidden = one("clock").hidden = one("to-claim").hidden = !view.item;
    one("undo").setAttribute("aria-disabled", String(!view.undo));
    if (view.item) showItem();
    else showFinish();
    const place = reviewing ? `${view.skipped} skipped left.` : `Item ${view.done + view.skipped + 1} of ${view.total}.`;
    one("status").textContent = [view.notice || happened, view.item ? place : ""].filter(Boolean).join(" ");
  }

  function showProgress() {
    one("progress").max = Math.max(view.total, 1);
    one("progress").value = view.done;
    const skipped = view.skipped ? `, ${view.skipped} skipped` : "";
    one("progress-text").textContent = `${view.done} of ${view.total} labelled${skipped}`;
  }

  function showItem() {
    const item = view.item;
    one("facts").replaceChildren(...item.facts.map((fact) => {
      const line = document.createElement("li");
      line.dir = "auto";
      line.textContent = fact;
      return line;
    }));
    one("task").textContent = item.task;
    one("claim").textContent = item.claim;
    one("seen-before").hidden = !item.skipped;
    one("comment").value = recall("comment") ?? item.comment;
    watched = Number(recall("time")) || 0;
    shownAt = performance.now();
    watch();
    tick();
    window.scrollTo(0, 0);
    one("claim").scrollTop = 0;
    one("claim").focus({ preventScroll: true });
  }

  function showFinish() {
    const all = view.skipped === 0;
    one("finished-title").textContent = all ? "All done. Thank you." : "Only skipped items are left.";
    const items = view.total === 1 ? "claim is" : "claims are";
    const said = all
      ? `Your ${view.total} ${items} labelled and saved. You can close this page.`
      : `${view.done} of ${view.total} ${items} labelled and saved, ${view.skipped} skipped.`;
    one("finished-text").textContent = `${said} Time on claims: ${clock(view.elapsed_ms)}.`;
    one("review").hidden = all;
    one("finished-title").focus();
  }

  // ----- keys

  function setKeys(on) {
    keysOn = on;
    one("keys").setAttribute("aria-pressed", String(on));
    one("keys-state").textContent = on ? "on" : "off";
    document.body.classList.toggle("keys-off", !on);
    try {
      localStorage.setItem(KEYS, on ? "on" : "off");
    } catch { /* the choice lasts until the page is left */ }
  }

  function onKey(event) {
    const typing = event.target === one("comment");
    if (event.key === "Escape" && typing) {
      one("claim").focus({ preventScroll: true });
      return;
    }
    if (typing || !keysOn || event.repeat || event.isComposing || event.ctrlKey || event.altKey || event.metaKey) return;
    const key = event.key.toLowerCase();
    const choice = choices.find((each) => each.dataset.key === key);
    const act = choice ? () => answer(choice.dataset.label) : { u: undo, s: () => answer(null), m: write }[key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  function write() {
    if (view?.item) one("comment").focus();
  }

  // ----- begin

  function token() {
    const given = location.hash.slice(1);
    return given === "claim" ? "" : given;
  }

  async function signIn() {
    const given = token();
    if (!given) return;
    // Gone from the address bar before anyone can copy or photograph it.
    history.replaceState(null, "", location.pathname);
    await ask("session", { token: given });
  }

  function begin() {
    run(async () => {
      await signIn();
      show(await ask("item"), "");
    });
  }

  for (const choice of choices) choice.addEventListener("click", () => answer(choice.dataset.label));
  one("undo").addEventListener("click", undo);
  one("skip").addEventListener("click", () => answer(null));
  one("review").addEventListener("click", review);
  one("retry").addEventListener("click", () => unsent && run(unsent));
  one("keys").addEventListener("click", () => setKeys(!keysOn));
  one("comment").addEventListener("input", () => remember("comment", one("comment").value));
  document.addEventListener("keydown", onKey);
  document.addEventListener("visibilitychange", () => (document.hidden ? lookAway() : watch()));
  window.addEventListener("pagehide", lookAway);
  window.addEventListener("hashchange", () => token() && begin());
  setInterval(tick, 1000);
  try {
    setKeys(localStorage.getItem(KEYS) !== "off");
  } catch {
    setKeys(true);
  }
  begin();
})();
