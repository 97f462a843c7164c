// Where to point at an element that collect.js found: scrolls to it and gives [x, y, isHit] of the page's own
// screen, or null if it has no place on it. isHit: nothing else lies above it there.
([key, place]) => {
  const element = window[key].elements[place];
  if (!element || !element.isConnected) return null;
  const findBox = () => [...element.getClientRects()].find((box) => box.width * box.height > 0);
  const document = element.ownerDocument, view = document.defaultView;
  let box = findBox();
  if (!box) return null;
  if (box.top < 0 || box.left < 0 || box.bottom > view.innerHeight || box.right > view.innerWidth) {
    element.scrollIntoView({ block: "center", inline: "nearest", behavior: "instant" });
    box = findBox();
  }
  let x = (Math.max(box.left, 0) + Math.min(box.right, view.innerWidth)) / 2;
  let y = (Math.max(box.top, 0) + Math.min(box.bottom, view.innerHeight)) / 2;
  const found = element.getRootNode().elementFromPoint(x, y);
  const label = found && found.closest("label");
  const isHit = !!found && (element.contains(found) || (!!label && label.control === element));
  for (let frame = view.frameElement; frame; frame = frame.ownerDocument.defaultView.frameElement) {
    const outer = frame.getBoundingClientRect();
    x += outer.left + frame.clientLeft;
    y += outer.top + frame.clientTop;
  }
  return [x, y, isHit];
}
