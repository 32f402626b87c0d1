"""A page in a browser that has no network, and what is seen there."""

from __future__ import annotations

# What follows reads the scene that Vega draws from; each of its items knows its element and its row of data.
_SCENE = """
window.seen = (() => {
  const panels = () => chart.view.scenegraph().root.items[0].items
    .filter(mark => mark.marktype === "group" && mark.role === "scope");
  const walk = (mark, visit) => {
    for (const item of mark.items ?? [])
      if (mark.marktype === "group") item.items.forEach(inner => walk(inner, visit));
      else if (mark.role === "mark") visit(item, mark);
  };
  const items = index => { const found = []; walk(panels()[index], item => found.push(item)); return found; };
  const look = item => [item.opacity, item.fillOpacity, item.strokeOpacity, item.fill, item.stroke, item.strokeWidth,
                        item.size, item.fontWeight].map(one => one ?? null);
  // A place within the page's view where the item lies on top, or null.
  const place = item => {
    const element = item._svg;
    if (!element) return null;
    element.scrollIntoView({block: "center", inline: "center", behavior: "instant"});
    const box = element.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
    return document.elementFromPoint(x, y)?.__data__ === item ? {x, y} : null;
  };
  const first = (index, wanted, take) => {
    for (const item of items(index).filter(wanted).slice(0, 200)) {
      const at = place(item);
      if (at) return {...at, ...take(item)};
    }
    return null;
  };
  return {panels, items, look, first};
})();
"""


class Viewer:
    """A page, opened and drawn.

    Attributes:
        page: Playwright's page.
        problems: Whatever should not have happened: errors, dialogs, requests.
    """

    def __init__(self, context, path):
        self.page, self.problems = context.new_page(), []
        self.page.on("console", lambda message: self._note(message.type in ("error", "warning"), message.text))
        self.page.on("pageerror", lambda error: self._note(True, str(error)))
        self.page.on("dialog", lambda dialog: (self._note(True, "a dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self._note(self._leaves(request.url), request.url))
        # Chromium counts file:// pages as offline too, and loads them.
        context.route(self._leaves, lambda route: route.abort())
        context.set_offline(True)
        self.page.goto(path.as_uri())
        self.settle()

    def settle(self):
        """Wait until the picture is there."""
        self.page.wait_for_function("document.getElementById('chart')?.view")
        self.page.evaluate(_SCENE)

    @staticmethod
    def _leaves(url):
        return not url.startswith(("file:", "data:", "blob:"))

    def _note(self, wrong, what):
        if wrong:
            self.problems.append(what)

    def evaluate(self, code, *arguments):
        return self.page.evaluate(code, *arguments)

    @property
    def parameters(self):
        """The names of what a reader can set."""
        return [one["name"] for one in self.evaluate("specification.params ?? []")]

    @property
    def panels(self):
        """The number of panels."""
        return self.evaluate("seen.panels().length")

    def data(self, panel, field):
        """Return ``field`` of the row behind each of a panel's marks."""
        return self.evaluate("([panel, field]) => seen.items(panel).map(item => item.datum?.[field])", [panel, field])

    def looks(self, panel):
        """Return the component, opacity and so on of each of a panel's marks that shows a component, sorted.

        The pointer is taken away before: what lies under it may look different.
        """
        self.page.mouse.move(0, 0)
        self.update()
        looks = self.evaluate(
            "panel => seen.items(panel).filter(item => item.datum?.component)"
            ".map(item => [item.datum.component, ...seen.look(item)])",
            panel,
        )
        return sorted(looks, key=str)

    def set(self, name, value):
        """Set a switch as a reader would, and wait for the picture."""
        self.page.locator(f"#controls select[name='{name}']").select_option(value)
        self.update()

    def update(self):
        """Wait until the picture shows what was done."""
        self.evaluate("chart.view.runAsync().then(() => 0)")

    def click(self, place):
        self.page.mouse.click(place["x"], place["y"])
        self.update()

    def tooltip(self, place):
        """Return the text of the tooltip at a place."""
        self.page.mouse.move(0, 0)
        self.page.mouse.move(place["x"], place["y"])
        self.page.wait_for_selector("#vg-tooltip-element.visible")
        return self.page.locator("#vg-tooltip-element").inner_text()
