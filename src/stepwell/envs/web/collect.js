// Reads the page once: its tree as JSON, nodes as [tag, attributes, children, index, seen] (see snapshot.py).
// The elements themselves stay in the page under a key that only this run knows.
({ key, maxNodes, maxDepth }) => {
  const skipped = new Set(("script style noscript template head meta link base title object embed param source " +
    "track video audio canvas datalist").split(" "));
  const names = ("href type name value placeholder checked disabled readonly multiple alt title role label for id " +
    "form target maxlength open contenteditable onclick tabindex aria-label aria-expanded aria-selected " +
    "aria-checked").split(" ");
  const pointed = new Set(["a", "button", "input", "select", "textarea", "summary", "option", "label", "body"]);
  const elements = [];
  const listening = (window[key] || {}).listening || new WeakSet();
  const height = window.innerHeight, width = window.innerWidth;
  let left = maxNodes;

  const isVisible = (element) =>
    element.checkVisibility({ visibilityProperty: true }) || getComputedStyle(element).display === "contents";
  const isSeen = (element) => {
    const box = element.getBoundingClientRect();
    return box.bottom > 0 && box.right > 0 && box.top < height && box.left < width && box.width > 0 ? 1 : 0;
  };
  const readAttributes = (element, tag, isInside) => {
    const found = {};
    for (const name of names) {
      const value = element.getAttribute(name);
      if (value !== null) found[name] = value;
    }
    if (tag === "input" || tag === "textarea") {
      if (!["checkbox", "radio", "file"].includes(element.type)) found.value = element.value;
      delete found.checked;
      if (element.checked) found.checked = "true";
    }
    if (tag === "option") {
      delete found.selected;
      if (element.selected) found.selected = "true";
    }
    if ("value" in found && tag !== "input" && tag !== "textarea" && tag !== "option" && tag !== "button") delete found.value;
    if (element.disabled) found.disabled = "true";
    if (listening.has(element) || typeof element.onclick === "function") found["-listens"] = "1";
    else if (!isInside && !pointed.has(tag) && getComputedStyle(element).cursor === "pointer" &&
      getComputedStyle(element.parentElement || element).cursor !== "pointer") found["-listens"] = "1";
    return found;
  };
  const listChildren = (element, tag) => {
    if (tag === "textarea") return [];
    if (element.shadowRoot) return element.shadowRoot.childNodes;
    if (tag === "slot") { const given = element.assignedNodes({ flatten: true }); if (given.length) return given; }
    if (tag === "iframe" || tag === "frame") {
      try { const inner = element.contentDocument; return inner && inner.body ? [inner.body] : []; } catch { return []; }
    }
    return element.childNodes;
  };
  const collect = (element, out, depth, isInside) => {
    if (--left < 0) return;
    const tag = element.localName;
    const inSelect = tag === "option" || tag === "optgroup";
    if (skipped.has(tag) || (!inSelect && !isVisible(element))) return;
    const attributes = readAttributes(element, tag, isInside);
    const children = [];
    const index = elements.push(element) - 1;
    out.push([tag, attributes, children, index, isSeen(element)]);
    const target = depth < maxDepth ? children : out;
    const inside = isInside || pointed.has(tag) && tag !== "body" || "-listens" in attributes;
    for (const child of listChildren(element, tag)) {
      if (child.nodeType === 3) { if (--left >= 0) children.push(child.data); }
      else if (child.nodeType === 1) collect(child, target, depth + 1, inside);
    }
  };

  const out = [];
  if (document.body) collect(document.body, out, 1, false);
  if (!window[key]) Object.defineProperty(window, key, { value: {}, enumerable: false, configurable: true });
  window[key].elements = elements;
  return JSON.stringify({ url: location.href, title: document.title, base: document.baseURI,
    body: out[0] || ["body", {}, [], 0, 0], isCut: left < 0,
    invalid: (window[key].invalid || []).splice(0) });
}
