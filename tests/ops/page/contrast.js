// The texts of the page that stand out less than WCAG's AA asks for (4.5 to 1), with their ratio.
() => {
  const parse = (text) => { const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number); return { r, g, b, a }; };
  const linear = (value) => { const v = value / 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const light = ({ r, g, b }) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const box = at.tagName === "svg" && at.querySelector(".box");
      const found = parse(box ? getComputedStyle(box).fill : getComputedStyle(at).backgroundColor);
      if (found.a > 0) return found;
    }
    return { r: 255, g: 255, b: 255 };
  };
  const weak = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.getClientRects().length || node.closest(".vh, .skip, script, style, noscript")) continue;
    const style = getComputedStyle(node);
    const tones = [light(parse(node instanceof SVGElement ? style.fill : style.color)), light(ground(node))].sort((x, y) => y - x);
    const ratio = (tones[0] + 0.05) / (tones[1] + 0.05);
    if (ratio < 4.5) weak.push(node.textContent.slice(0, 30) + " " + ratio.toFixed(2));
  }
  return weak;
}
