// Runs before a page's own scripts: remembers which elements listen to clicks, and closes what could leave the
// machine without asking for an address.
((key) => {
  const listening = new WeakSet(), invalid = [], state = { listening, invalid, departures: 0, openings: 0 };
  Object.defineProperty(window, key, { value: state, enumerable: false, configurable: true });
  const add = EventTarget.prototype.addEventListener;
  const clicks = new Set(["click", "mousedown", "mouseup", "pointerdown", "pointerup", "dblclick"]);
  EventTarget.prototype.addEventListener = function (kind, ...rest) {
    if (clicks.has(kind) && this instanceof Element && this !== document.body && this !== document.documentElement)
      listening.add(this);
    return add.call(this, kind, ...rest);
  };
  add.call(window, "invalid", ({ target }) =>
    invalid.push([target.name || target.type, target.validity.valueMissing, target.validationMessage]), true);
  // A link, a form or a script leads away: the driver must not read this page as the answer to its action.
  if (window.navigation) add.call(window.navigation, "navigate", (event) => {
    const { sameDocument, url } = event.destination;
    if (!sameDocument && event.downloadRequest === null && url.startsWith("http"))
      state.departures += 1;
  });
  // A script or a form opens a tab: the driver waits until it is there.
  const open = window.open, isOutside = (target) => !["_self", "_parent", "_top"].includes(target);
  window.open = function (url, target = "_blank", ...rest) {
    const opened = open.call(this, url, target, ...rest);
    if (isOutside(target) && (opened || String(rest[0] || "").includes("noopener"))) state.openings += 1;
    return opened;
  };
  add.call(window, "submit", (event) => {
    if (!event.defaultPrevented && event.target.target && isOutside(event.target.target)) state.openings += 1;
  });
  for (const name of ["RTCPeerConnection", "webkitRTCPeerConnection", "WebTransport"]) delete window[name];
})
