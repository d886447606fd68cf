"""Which configuration generation a request belongs to.

All legs of a request go to members of one generation, so that a rolling update gives no answer of which one
part comes from the old configuration and another from the new one. It is settled by the first engine that
gets a leg, or by a render tier that renders for one generation alone. While a request has one run and its
client has seen nothing, an attempt that begins anew may settle on another one.
"""

from __future__ import annotations


class Generation:
    __slots__ = ("_of_render", "_settled")

    def __init__(self) -> None:
        self._settled: str | None = None
        self._of_render: str | None = None

    def __repr__(self) -> str:
        return f"<Generation {self._settled!r} render={self._of_render!r}>"

    def rendered_by(self, generation: str) -> None:
        """The render tier's; an empty one renders for all."""
        self._of_render = generation or None

    def renders(self, generation: str) -> bool:
        """Whether a render tier of ``generation`` may read what this request's engines say."""
        return generation == (self._of_render or "")

    def allows(self, generation: str, *, anew: bool) -> bool:
        """Whether an engine of ``generation`` may get a leg. ``anew``: nothing of the request depends on what
        an engine has done before."""
        if self._of_render is not None:
            return generation == self._of_render
        return anew or self._settled in (None, generation)

    def settle(self, generation: str) -> None:
        """An engine of ``generation`` gets a leg that it was allowed."""
        self._settled = generation
