// Sorts and filters the rows. All rows are in the page; without this script they stand in the order of urgency.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const body = $("rows"), find = $("find"), format = $("format"), state = $("state"), reset = $("reset"), open = $("open"), save = $("save"), part = $("part");
  const heads = Array.from(document.querySelectorAll("th[data-sort]"));
  const boxes = Array.from(document.querySelectorAll("#tools input[type=checkbox]"));
  const most = 200; // rows that are opened at once
  const first = 300, step = 1000; // rows that are shown in the first frame after a change, and in each that follows
  const natural = new Intl.Collator("en", {numeric: true});
  const kinds = ["failed", "misaligned", "below", "unknown", "aligned", "nothing", "orphan", "original", "removed"];
  let sort = "rank", down = false, shown = 0;
  let at = 0, moves = false; // the next row to place, and whether it must move

  // Numbers of bytes are in the titles, and a cost is text as "100 %". What has none comes last.
  const bytes = (cell) => cell.title ? parseInt(cell.title, 10) : -1;
  const cost = (text) => text === "" ? -1 : text.charAt(0) === "<" ? 0.5 : parseFloat(text);

  let rows = null;
  const index = () => {
    if (rows) return rows;
    rows = Array.from(body.rows, (tr, rank) => {
      const c = tr.cells, summary = c[1].querySelector("summary");
      let text = summary.textContent + "\n" + c[3].textContent;
      for (const label of c[1].querySelectorAll("q, h3, .error + span")) text += "\n" + label.textContent;
      return {
        tr, rank, path: summary.firstChild ? summary.firstChild.textContent : "", verdict: kinds.indexOf(tr.classList[0]), format: c[3].textContent.trim(),
        size: bytes(c[4]), stored: bytes(c[5]), cost: cost(c[6].textContent), text: text.toLowerCase(), fits: true, alphabet: 0,
      };
    });
    // Comparing names as people do is slow, so it is done once.
    rows.slice().sort((a, b) => natural.compare(a.path, b.path)).forEach((r, n) => { r.alphabet = n; });
    at = rows.length;
    return rows;
  };

  const hide = (tr, hidden) => { if (tr.hidden !== hidden) tr.hidden = hidden; };

  // show puts the rows that fit onto the page, after a sort in their new order: the first at once, the others in the frames that
  // follow, since 10,000 rows take a second. What is not in its place yet is hidden, so that what is seen is in order.
  const show = (sorted) => {
    const idle = at === rows.length;
    moves = sorted || (moves && !idle);
    at = shown = 0;
    for (const r of rows) {
      if (r.fits) shown++;
      if (moves || !r.fits) hide(r.tr, true);
    }
    place(first);
    for (let n = at; !moves && n < rows.length; n++) hide(rows[n].tr, true);
    if (idle && at < rows.length) requestAnimationFrame(next);
  };

  // place shows up to n more rows.
  const place = (n) => {
    const moved = document.createDocumentFragment();
    for (let left = step; at < rows.length && n > 0 && left > 0; at++) {
      const r = rows[at];
      if (moves) { moved.append(r.tr); left--; }
      if (r.fits) { hide(r.tr, false); n--; }
    }
    body.append(moved);
  };

  const next = () => {
    place(step);
    if (at < rows.length) requestAnimationFrame(next);
  };

  const order = {
    rank: (a, b) => a.rank - b.rank, path: (a, b) => a.alphabet - b.alphabet, verdict: (a, b) => a.verdict - b.verdict,
    format: (a, b) => natural.compare(a.format, b.format), size: (a, b) => a.size - b.size, stored: (a, b) => a.stored - b.stored,
    cost: (a, b) => a.cost - b.cost,
  };

  const arrange = () => {
    const by = order[sort], sign = down ? -1 : 1;
    index().sort((a, b) => sign * by(a, b) || a.rank - b.rank);
    show(true);
    mark();
  };

  const mark = () => {
    for (const th of heads) {
      if (th.dataset.sort === sort) th.setAttribute("aria-sort", down ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    }
  };

  const chosen = (name) => boxes.filter((b) => b.name === name && b.checked);

  const filter = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter((w) => w !== "");
    const kind = chosen("kind").map((b) => b.value), tag = chosen("tag").map((b) => b.value), f = format.value;
    for (const r of index()) {
      const is = r.tr.classList;
      r.fits = words.every((w) => r.text.includes(w)) && (kind.length === 0 || kind.includes(is[0])) &&
        (tag.length === 0 || tag.some((t) => is.contains(t))) && (f === "" || r.format === f || r.format.startsWith(f + " "));
    }
    show(false);
    say();
  };

  // say tells what is shown, and by which filter.
  const say = () => {
    const total = body.rows.length;
    const parts = boxes.filter((b) => b.checked).map((b) => b.dataset.word);
    if (format.value !== "") parts.push("format " + format.value);
    if (find.value.trim() !== "") parts.push("with \u201C" + find.value.trim() + "\u201D");
    state.textContent = parts.length === 0 ? "All " + total + " rows are shown." :
      shown + " of " + total + " rows are shown: " + parts.join(", ") + ".";
    reset.hidden = part.hidden = parts.length === 0;
    part.textContent = "This is a part of the report. " + state.textContent + " The sums above are those of all images.";
    save.disabled = shown === 0;
    $("none").hidden = shown > 0 || total === 0;
    open.disabled = shown === 0 || shown > most;
    open.title = shown > most ? "for up to " + most + " rows: narrow them first" : "";
  };

  // The choice is in the address, so that it can be kept and sent.
  const keep = () => {
    const q = new URLSearchParams();
    if (sort !== "rank" || down) q.set("sort", (down ? "-" : "") + sort);
    if (find.value !== "") q.set("find", find.value);
    if (format.value !== "") q.set("format", format.value);
    const only = boxes.filter((b) => b.checked).map((b) => b.value);
    if (only.length > 0) q.set("only", only.join(","));
    history.replaceState(null, "", "#" + q.toString());
  };

  const recall = () => {
    const q = new URLSearchParams(location.hash.slice(1));
    const s = q.get("sort") || "rank", by = s.replace(/^-/, "");
    find.value = q.get("find") || "";
    format.value = q.get("format") || "";
    if (format.selectedIndex < 0) format.value = "";
    const only = (q.get("only") || "").split(",");
    for (const b of boxes) b.checked = only.includes(b.value);
    const changed = Object.hasOwn(order, by) && (by !== sort || s.startsWith("-") !== down);
    if (changed) { sort = by; down = s.startsWith("-"); arrange(); }
    if (find.value !== "" || format.value !== "" || boxes.some((b) => b.checked) || rows) filter();
    else { shown = body.rows.length; say(); }
  };

  for (const th of heads) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...th.childNodes);
    th.append(button);
    button.addEventListener("click", () => {
      const by = th.dataset.sort, falls = th.classList.contains("number");
      down = by === sort ? !down : falls;
      sort = by;
      arrange();
      keep();
    });
  }
  let due = 0;
  const typed = () => { due = 0; filter(); keep(); };
  find.addEventListener("input", () => {
    clearTimeout(due);
    due = setTimeout(typed, 120);
  });
  // settle has a filter that was just typed take effect before the rows are printed or saved.
  const settle = () => { if (due) { clearTimeout(due); typed(); } };
  for (const e of [format, ...boxes]) e.addEventListener("change", () => { filter(); keep(); });
  reset.addEventListener("click", () => {
    find.value = format.value = "";
    for (const b of boxes) b.checked = false;
    filter();
    keep();
    find.focus();
  });
  open.addEventListener("click", () => {
    const all = index().filter((r) => r.fits).map((r) => r.tr.querySelector("details"));
    const close = all.every((d) => d.open);
    for (const d of all) d.open = !close;
  });

  // csv is what the rows that fit say, a line for each image. A text that a spreadsheet would take for a formula gets an apostrophe, as
  // in what trueup scan -o csv prints.
  const guard = (text) => text.split(";").map((s) => s.replace(/^[ "]*(?=[=+\-@\uFF1D\uFF0B\uFF0D\uFF20])/, "$&'")).join(";");
  const quote = (text) => /[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  const csv = () => {
    const lines = [["rank", "path", "verdict", "marks", "format", "disk_size_bytes", "stored_bytes", "extra_io", "note", "command"]];
    for (const r of index()) {
      if (!r.fits) continue;
      const c = r.tr.cells, text = (e) => e ? e.textContent.trim() : "", number = (n) => n < 0 ? "" : String(n);
      lines.push([text(c[0]), r.path, text(c[2].querySelector(".kind")), Array.from(c[2].querySelectorAll("i"), text).join("; "), r.format,
        number(r.size), number(r.stored), text(c[6]), text(c[1].querySelector("summary small")), text(c[1].querySelector(".run code"))]);
    }
    return lines.map((l) => l.map((s) => quote(guard(s))).join(",") + "\r\n").join("");
  };
  save.addEventListener("click", () => {
    settle();
    const a = document.createElement("a");
    a.href = URL.createObjectURL(new Blob([csv()], {type: "text/csv"}));
    a.download = "images.csv";
    a.click();
    setTimeout(() => URL.revokeObjectURL(a.href), 60000);
  });

  // A number that has a title lies above the line, and opens it too.
  body.addEventListener("click", (e) => {
    const cell = e.target.closest("td");
    if (!cell || cell.parentNode.parentNode !== body || !cell.title) return;
    const d = cell.parentNode.querySelector("details");
    d.open = !d.open;
  });

  // A command gets its button when it is first seen, where the browser lets a page write to the clipboard.
  document.addEventListener("toggle", (e) => {
    const code = e.target.open && e.target.querySelector(".run code");
    if (!code || code.nextSibling || !navigator.clipboard) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", () => {
      navigator.clipboard.writeText(code.textContent).then(() => { button.textContent = "Copied"; }, () => { button.textContent = "Select and copy"; });
    });
    code.after(button);
  }, true);

  addEventListener("beforeprint", () => { settle(); while (rows && at < rows.length) place(step); });
  addEventListener("hashchange", recall);
  $("tools").hidden = false;
  mark();
  recall();
  (window.requestIdleCallback || setTimeout)(index); // so that the first click need not wait for it
})();
