// Runs before a page's own scripts: remembers which elements listen to clicks, and closes what could leave the
// machine without asking for an address.
((key) => {
  const listening = new WeakSet(), invalid = [];
  Object.defineProperty(window, key, { value: { listening, invalid }, enumerable: false, configurable: true });
  const add = EventTarget.prototype.addEventListener;
  const clicks = new Set(["click", "mousedown", "mouseup", "pointerdown", "pointerup", "dblclick"]);
  EventTarget.prototype.addEventListener = function (kind, ...rest) {
    if (clicks.has(kind) && this instanceof Element && this !== document.body && this !== document.documentElement)
      listening.add(this);
    return add.call(this, kind, ...rest);
  };
  add.call(window, "invalid", ({ target }) =>
    invalid.push([target.name || target.type, target.validity.valueMissing, target.validationMessage]), true);
  for (const name of ["RTCPeerConnection", "webkitRTCPeerConnection", "WebTransport"]) delete window[name];
})
