"use strict";
(() => {
  const $ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const root = document.documentElement;
  root.classList.add("scripted");

  // Theme: the system's, until the reader says otherwise.
  const themes = $(".theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const remembered = (() => { try { return localStorage.getItem("deploycnn-theme"); } catch { return null; } })();
  if (remembered === "dark" || remembered === "light") root.dataset.theme = remembered;
  const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const showTheme = () => themes.forEach((button) => {
    button.setAttribute("aria-pressed", String(isDark()));
    button.querySelector(".word").textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
  });
  themes.forEach((button) => button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("deploycnn-theme", root.dataset.theme); } catch { /* a page without storage forgets */ }
    showTheme();
  }));
  system.addEventListener("change", showTheme);
  showTheme();

  // A run that several machines measured: one of them at a time, the last one first.
  const parts = $(".part");
  const showPart = (number) => {
    parts.forEach((part) => { part.hidden = part.dataset.part !== number; });
    $(".machine").forEach((select) => { select.value = number; });
  };
  $(".machine").forEach((select) => select.addEventListener("change", () => { showPart(select.value); scrollTo(0, 0); }));
  showPart(parts.at(-1).dataset.part);

  // One batch size at a time; without this script all of them show.
  parts.forEach((part) => {
    const radios = $(".switch input", part);
    const showBatch = (batch) => $("[data-batch]", part).forEach((element) => { element.hidden = element.dataset.batch !== batch; });
    radios.forEach((radio) => radio.addEventListener("change", () => showBatch(radio.value)));
    const chosen = radios.find((radio) => radio.checked) || radios[0];
    if (chosen) showBatch(chosen.value);
  });

  // Tooltips: `title` and SVG <title> become one tooltip that also follows the keyboard.
  const tip = document.getElementById("tip");
  $("main [title]").forEach((element) => {
    element.dataset.tip = element.title;
    element.removeAttribute("title");
  });
  $("main .mark > title").forEach((title) => {
    const mark = title.parentNode;
    mark.dataset.tip = title.textContent;
    mark.setAttribute("role", "img");
    mark.setAttribute("aria-label", title.textContent.replaceAll("\n", ". "));
    title.remove();
  });
  let shownFor = null;
  const place = (box) => {
    const { width, height } = tip.getBoundingClientRect();
    const left = Math.min(Math.max(box.left + box.width / 2 - width / 2, 8), innerWidth - width - 8);
    const above = box.top - height - 8;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 8 ? above : Math.min(box.bottom + 8, innerHeight - height - 8)}px`;
  };
  const show = (element, box) => {
    if (!element || !element.dataset.tip) return;
    tip.textContent = element.dataset.tip;
    tip.hidden = false;
    if (shownFor !== element) {
      if (shownFor) shownFor.removeAttribute("aria-describedby");
      if (!element.classList.contains("mark")) element.setAttribute("aria-describedby", "tip");
      shownFor = element;
    }
    place(box || element.getBoundingClientRect());
  };
  const hide = () => {
    tip.hidden = true;
    if (shownFor) shownFor.removeAttribute("aria-describedby");
    shownFor = null;
  };
  const tipped = (event) => event.target.closest && event.target.closest("[data-tip]");
  document.addEventListener("pointermove", (event) => {
    const element = tipped(event);
    if (!element) { if (shownFor && !shownFor.contains(document.activeElement)) hide(); return; }
    const box = element.getBoundingClientRect();
    const large = box.width > 260 || box.height > 120;
    show(element, large ? { left: event.clientX, width: 0, top: event.clientY - 6, bottom: event.clientY + 14 } : box);
  });
  document.addEventListener("focusin", (event) => { const element = tipped(event); if (element) show(element); else hide(); });
  document.addEventListener("focusout", hide);
  document.addEventListener("click", (event) => { const element = tipped(event); if (element) show(element); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  addEventListener("scroll", () => { if (shownFor && shownFor === document.activeElement) place(shownFor.getBoundingClientRect()); else hide(); }, true);

  // One tab stop for each table and chart; arrow keys move inside it.
  const visible = (element) => element.getClientRects().length > 0;
  const roving = (group, items, step) => {
    const reset = (to) => items().forEach((item) => { item.tabIndex = item === to ? 0 : -1; });
    if (!items().length) return;
    reset(items()[0]);
    group.addEventListener("keydown", (event) => {
      const list = items().filter(visible);
      const from = list.find((item) => item === event.target || item.contains(event.target));
      const to = from && step(event.key, list, from);
      if (!to) return;
      event.preventDefault();
      reset(to);
      to.focus();
    });
    group.addEventListener("focusin", (event) => { const item = event.target.closest("[data-tip]"); if (item && items().includes(item)) reset(item); });
  };
  const along = (key, list, from) => {
    const at = list.indexOf(from);
    return { ArrowRight: list[at + 1], ArrowDown: list[at + 1], ArrowLeft: list[at - 1], ArrowUp: list[at - 1], Home: list[0], End: list.at(-1) }[key];
  };
  const across = (key, list, from) => {
    if (key === "ArrowRight" || key === "ArrowLeft" || key === "Home" || key === "End") {
      const row = from.closest("tr");
      return along(key, list.filter((item) => item.closest("tr") === row), from);
    }
    if (key !== "ArrowUp" && key !== "ArrowDown") return null;
    const column = (item) => item.closest("td,th").cellIndex;
    const same = list.filter((item) => column(item) === column(from));
    return same[same.indexOf(from) + (key === "ArrowDown" ? 1 : -1)];
  };
  $("table").forEach((table) => roving(table, () => $("tbody [data-tip]", table), across));
  $("svg.chart").filter((chart) => chart.querySelector(".mark")).forEach((chart) => roving(chart, () => $(".mark", chart), along));
  $(".tiles,.chips,.sheet,.rivals").forEach((list) => roving(list, () => $("[data-tip]", list), along));

  // The table: sort by any heading, filter by words and by verdict.
  const sortable = (table, rows) => {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => {
      const descending = heading.getAttribute("aria-sort") === "ascending";
      headings.forEach((other) => other.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.sort;
      const numeric = rows.every((row) => value(row) === "" || !Number.isNaN(Number(value(row))));
      rows.sort((a, b) => {
        const [left, right] = [value(a), value(b)];
        if (left === "" || right === "") return (left === "") - (right === "");  // what is missing stays last
        const order = numeric ? Number(left) - Number(right) : left.localeCompare(right, "en");
        return descending ? -order : order;
      });
      table.tBodies[0].append(...rows);
    }));
  };
  const filterable = (section, rows) => {
    const filter = section.querySelector(".filter");
    const states = $(".state", section);
    const apply = () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      const wanted = new Set(states.filter((button) => button.getAttribute("aria-pressed") === "true").map((button) => button.dataset.state));
      let count = 0;
      rows.forEach((row) => {
        const text = `${row.cells[0].textContent} ${row.cells[1].textContent}`.toLowerCase();
        row.hidden = !(wanted.has(row.dataset.state) && words.every((word) => text.includes(word)));
        count += !row.hidden;
      });
      section.querySelector("output").textContent = `${count} of ${rows.length}`;
    };
    filter.addEventListener("input", apply);
    states.forEach((button) => button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      apply();
    }));
    apply();
  };
  $(".artifacts").forEach((table) => {
    const rows = [...table.tBodies[0].rows];
    sortable(table, rows);
    filterable(table.closest("section"), rows);
  });

  // Copy buttons.
  $(".copy").forEach((button) => button.addEventListener("click", async () => {
    const done = (text) => { button.textContent = text; setTimeout(() => { button.textContent = "Copy"; }, 1500); };
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      done("Copied");
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling);
      done("Selected");
    }
  }));

  addEventListener("beforeprint", () => $("details").forEach((details) => { details.open = true; }));
})();
